//! What came before a response: the inputs and answers of its `previous_response_id` and of those before that.
//!
//! What is listed and gone on from is each response's own input, so nobody can go on behind a deleted one; who tries is told so.
//! Instructions are not handed on, as OpenAI says.
//!
//! Invariant: a chain is read within a limit of length and one of bytes, and only within its tenant.
// contract: C-28 C-30

use axum::http::StatusCode;
use lifecycle::Tenant;

use super::asked::{Asked, Item, Role};
use super::runs::Runs;
use super::stored::{SHOWN_MAX, find, told};
use crate::http::error::ApiError;

/// Most responses before one. Each is read from the store: what it was asked and what it said.
const CHAIN_MAX: usize = 100;

const FIELD: &str = "previous_response_id";

/// The items of all responses up to `previous`, oldest first, of at most so many bytes.
pub(super) async fn items<R: Runs>(runs: &R, tenant: &Tenant, previous: &str, bytes_max: usize) -> Result<Vec<Item>, ApiError> {
    let mut next = Some(previous.to_owned());
    let (mut items, mut bytes, mut length) = (Vec::new(), 0_usize, 0_usize);
    while let Some(id) = next {
        length += 1;
        if length > CHAIN_MAX {
            return Err(too_long(format!("has more than {CHAIN_MAX} responses before it")));
        }
        let found = find(runs, tenant, &id).await.map_err(|error| missing(error, &id))?;
        if found.run.outcome.is_none() {
            return Err(
                ApiError::field(FIELD, format!("Previous response with id '{id}' is still in progress.")).code("response_in_progress")
            );
        }
        let answer = told(runs, &found).await?.answer();
        // Newest first, to be turned round at the end.
        let own = said(&found.head.asked, answer);
        bytes += own.iter().map(Item::bytes).sum::<usize>();
        if bytes > bytes_max {
            return Err(too_long(format!("and what was said before it have more than {bytes_max} bytes")));
        }
        items.extend(own.into_iter().rev());
        next = found.head.asked.previous_response_id.clone();
    }
    items.reverse();
    Ok(items)
}

/// What a response was asked, and what it answered.
pub(super) fn said(asked: &Asked, answer: Vec<Item>) -> Vec<Item> {
    asked.input.iter().cloned().chain(answer).collect()
}

/// The instructions as an item.
pub(super) fn instructed(asked: &Asked) -> Option<Item> {
    asked.instructions.clone().map(|text| Item::message(Role::System, text))
}

fn too_long(what: String) -> ApiError {
    ApiError::field(FIELD, what).code("context_length_exceeded")
}

/// OpenAI answers with 400 here, and with 404 only where the response itself is asked for.
fn missing(error: ApiError, id: &str) -> ApiError {
    if error.status != StatusCode::NOT_FOUND {
        return error;
    }
    let shown: String = id.chars().take(SHOWN_MAX).collect();
    ApiError::field(FIELD, format!("Previous response with id '{shown}' not found.")).code("previous_response_not_found")
}
