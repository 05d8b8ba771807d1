-- The words BIGINT, BYTEA, IDENTITY and the mark `/*table*/` are said in each database's own way (sql/schema.rs).

-- A row: the schema's version, and what shows whether the key is the right one.
CREATE TABLE kvit_schema (
    one BIGINT PRIMARY KEY CHECK (one = 1),
    version BIGINT NOT NULL,
    key_check BYTEA,
    -- How often SQLite's log was begun anew.
    logs BIGINT NOT NULL
)/*table*/;

CREATE TABLE kvit_run (
    id IDENTITY,
    tenant TEXT NOT NULL,
    run TEXT NOT NULL,
    -- The id that its gateway made for it, whatever it is called: a repeated Accept is known by it.
    fresh TEXT NOT NULL,
    door TEXT NOT NULL,
    model TEXT NOT NULL,
    caller TEXT NOT NULL,
    on_disconnect TEXT NOT NULL,
    keeps BIGINT NOT NULL,
    owner TEXT NOT NULL,
    attempt BIGINT NOT NULL,
    kind TEXT,
    cause TEXT,
    reason TEXT,
    wanted TEXT,
    prompt_tokens BIGINT NOT NULL,
    cached_tokens BIGINT NOT NULL,
    generated_tokens BIGINT NOT NULL,
    delivery TEXT,
    last_event BIGINT NOT NULL,
    last_effect BIGINT NOT NULL,
    created_ms BIGINT NOT NULL,
    ended_ms BIGINT,
    expires_ms BIGINT,
    request BYTEA,
    record BYTEA,
    erased BIGINT NOT NULL,
    UNIQUE (tenant, run)
)/*table*/;
CREATE INDEX kvit_run_list ON kvit_run (tenant, id);
CREATE INDEX kvit_run_open ON kvit_run (owner, id) WHERE cause IS NULL;
CREATE INDEX kvit_run_expires ON kvit_run (expires_ms, id) WHERE ended_ms IS NOT NULL AND expires_ms IS NOT NULL;
CREATE INDEX kvit_run_ended ON kvit_run (ended_ms, id) WHERE ended_ms IS NOT NULL AND expires_ms IS NULL;

-- An `Idempotency-Key` and the run that it led to last.
CREATE TABLE kvit_key (
    tenant TEXT NOT NULL,
    name TEXT NOT NULL,
    digest BYTEA NOT NULL,
    run BIGINT NOT NULL REFERENCES kvit_run (id) ON DELETE CASCADE,
    PRIMARY KEY (tenant, name)
)/*table*/;
CREATE INDEX kvit_key_run ON kvit_key (run);

CREATE TABLE kvit_event (
    run BIGINT NOT NULL REFERENCES kvit_run (id) ON DELETE CASCADE,
    number BIGINT NOT NULL,
    body BYTEA NOT NULL,
    PRIMARY KEY (run, number)
)/*table*/;

CREATE TABLE kvit_effect (
    run BIGINT NOT NULL REFERENCES kvit_run (id) ON DELETE CASCADE,
    name TEXT NOT NULL,
    number BIGINT NOT NULL,
    kind TEXT NOT NULL,
    description BYTEA NOT NULL,
    state TEXT NOT NULL,
    attempt BIGINT NOT NULL,
    detail BYTEA,
    created_ms BIGINT NOT NULL,
    updated_ms BIGINT NOT NULL,
    PRIMARY KEY (run, name)
)/*table*/;

-- It outlives its run until it is over; without `due_ms` it is.
CREATE TABLE kvit_hook (
    number IDENTITY,
    id TEXT NOT NULL UNIQUE,
    tenant TEXT NOT NULL,
    run TEXT NOT NULL,
    url TEXT NOT NULL,
    body BYTEA NOT NULL,
    due_ms BIGINT,
    tries BIGINT NOT NULL
)/*table*/;
CREATE INDEX kvit_hook_due ON kvit_hook (due_ms, number) WHERE due_ms IS NOT NULL;
CREATE INDEX kvit_hook_run ON kvit_hook (tenant, run);

-- The lives of gateways.
CREATE TABLE kvit_life (
    life TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    beat BIGINT NOT NULL
)/*table*/;
