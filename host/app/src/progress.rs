//! Shows what was applied on its way to ready: a live tree on a terminal, a line per change elsewhere.

use std::collections::HashMap;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use capstan_api::ObjectKey;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use crate::health::Line;

/// Where progress is shown.
pub struct Progress {
    started: Instant,
    terminal: Option<Terminal>,
    told: HashMap<ObjectKey, String>,
}

struct Terminal {
    all: MultiProgress,
    head: ProgressBar,
    rows: Vec<ProgressBar>,
}

impl Progress {
    /// On standard output; times count from `started`.
    pub fn new(started: Instant) -> Self {
        let terminal = std::io::stdout().is_terminal().then(|| {
            let all = MultiProgress::with_draw_target(indicatif::ProgressDrawTarget::stdout());
            let head = all.add(ProgressBar::new_spinner());
            if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}") {
                head.set_style(style);
            }
            head.enable_steady_tick(Duration::from_millis(120));
            Terminal { all, head, rows: Vec::new() }
        });
        Self { started, terminal, told: HashMap::new() }
    }

    /// Says what happens now, beside the tree.
    pub fn say(&self, text: &str) {
        match &self.terminal {
            Some(terminal) => terminal.head.set_message(text.to_owned()),
            None => say!("{} {text}", self.time()),
        }
    }

    /// Says something that stays.
    pub fn tell(&self, text: &str) {
        match &self.terminal {
            Some(terminal) => {
                let _ = terminal.all.println(text);
            }
            None => say!("{} {text}", self.time()),
        }
    }

    fn time(&self) -> String {
        format!("[{:6.1}s]", self.started.elapsed().as_secs_f64())
    }

    /// Shows the tree as it is now.
    pub fn show(&mut self, lines: &[Line]) {
        match &mut self.terminal {
            Some(terminal) => terminal.show(lines),
            None => {
                for line in lines {
                    let text = plain(line);
                    if self.told.get(&line.key) != Some(&text) {
                        say!("[{:6.1}s] {text}", self.started.elapsed().as_secs_f64());
                        self.told.insert(line.key.clone(), text);
                    }
                }
            }
        }
    }

    /// Ends the live tree; it stays on the screen as it is.
    pub fn end(&mut self) {
        if let Some(terminal) = self.terminal.take() {
            for row in &terminal.rows {
                row.abandon();
            }
            terminal.head.finish_and_clear();
            say!();
        }
    }
}

impl Terminal {
    fn show(&mut self, lines: &[Line]) {
        while self.rows.len() > lines.len() {
            if let Some(row) = self.rows.pop() {
                row.finish_and_clear();
                self.all.remove(&row);
            }
        }
        while self.rows.len() < lines.len() {
            let row = self.all.insert_before(&self.head, ProgressBar::new_spinner());
            if let Ok(style) = ProgressStyle::with_template("{wide_msg}") {
                row.set_style(style);
            }
            self.rows.push(row);
        }
        for (row, line) in self.rows.iter().zip(lines) {
            row.set_message(tree_row(line));
        }
    }
}

fn plain(line: &Line) -> String {
    let mut text = format!("{}: {}", line.key, line.state);
    if let Some(why) = &line.why {
        text.push_str(&format!(" ({why})"));
    }
    text
}

fn tree_row(line: &Line) -> String {
    let mark = if line.ready { "✔" } else { "·" };
    let name = format!("{}{mark} {} {}", "  ".repeat(line.depth), line.key.kind, line.key.name);
    let mut text = format!("{name:52} {}", line.state);
    if let Some(why) = &line.why {
        text.push_str(&format!("  {why}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_where_and_why() {
        let line = Line {
            key: ObjectKey::new("g", "Machine", "n", "m"),
            depth: 1,
            state: "Provisioning".into(),
            why: Some("InfrastructureReady: booting".into()),
            counts: false,
            ready: false,
        };
        assert_eq!(plain(&line), "Machine n/m: Provisioning (InfrastructureReady: booting)");
        assert!(tree_row(&line).starts_with("  · Machine m "));
    }
}
