//! A run's timeline as text.

/// Renders a run's JSON.
pub fn render_timeline(run: &serde_json::Value, width: usize, colour: bool) -> String {
    let _ = (width, colour);
    run.to_string()
}
