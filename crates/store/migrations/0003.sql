-- Gateways at which somebody reads a run that another one has.
CREATE TABLE kvit_reader (
    run BIGINT NOT NULL REFERENCES kvit_run (id) ON DELETE CASCADE,
    life TEXT NOT NULL,
    PRIMARY KEY (run, life)
)/*table*/;
CREATE INDEX kvit_reader_life ON kvit_reader (life);
