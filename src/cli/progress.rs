//! Progress bars on stderr, drawn only where stderr is a terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// What is being counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Units {
    /// Bytes, shown in binary units with a rate.
    Bytes,
    /// Things of a kind, shown as a count.
    Items,
}

/// A bar with rate and time left; silent where nobody would see it.
#[derive(Clone, Debug)]
pub struct Progress(ProgressBar);

impl Progress {
    /// Starts a bar over `total` units. Hidden unless stderr is a terminal.
    pub fn new(label: &str, total: u64, units: Units) -> Progress {
        let template = match units {
            Units::Bytes => "{msg:24!} {bar:32} {bytes}/{total_bytes} {bytes_per_sec} eta {eta}",
            Units::Items => "{msg:24!} {bar:32} {pos}/{len} eta {eta}",
        };
        let bar = ProgressBar::new(total).with_message(label.to_owned());
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        if !bar.is_hidden() {
            bar.enable_steady_tick(Duration::from_millis(250));
        }
        Progress(bar)
    }

    /// A bar that is never drawn, for library callers and tests.
    pub fn hidden() -> Progress {
        Progress(ProgressBar::hidden())
    }

    /// Counts `units` more.
    pub fn add(&self, units: u64) {
        self.0.inc(units);
    }

    /// Sets the count, for work that starts in the middle or goes back.
    pub fn set(&self, units: u64) {
        self.0.set_position(units);
    }

    /// Removes the bar.
    pub fn finish(&self) {
        self.0.finish_and_clear();
    }
}
