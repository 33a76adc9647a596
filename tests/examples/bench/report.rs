//! What came out, as a table.

use std::collections::BTreeMap;

/// What a number means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Microseconds of one; less is better.
    Micros,
    /// Milliseconds of one; less is better.
    Millis,
    /// How many in a second; more is better.
    PerSecond,
    /// MiB; less is better.
    Memory,
}

/// All numbers so far.
#[derive(Default)]
pub struct Report {
    order: Vec<(String, Unit)>,
    numbers: BTreeMap<(String, &'static str), Vec<f64>>,
}

impl Report {
    /// One more number of a measure.
    pub fn add(&mut self, measure: &str, unit: Unit, server: &'static str, number: f64) {
        if !self.order.iter().any(|(known, _)| known == measure) {
            self.order.push((measure.to_owned(), unit));
        }
        self.numbers.entry((measure.to_owned(), server)).or_default().push(number);
    }

    /// Memory.
    pub fn memory(&mut self, measure: &str, server: &'static str, mebibytes: f64) {
        self.add(measure, Unit::Memory, server, mebibytes);
    }

    fn median(&self, measure: &str, server: &'static str) -> f64 {
        let mut all = self.numbers.get(&(measure.to_owned(), server)).cloned().unwrap_or_default();
        all.sort_by(f64::total_cmp);
        all.get(all.len() / 2).copied().unwrap_or_default()
    }

    /// As Markdown, on standard output. A ratio above 1 is for the embedded server.
    pub fn print(&self, rounds: usize, machine: &str) {
        println!("`{machine}`, medians of {rounds} rounds\n");
        println!("| Measure | Embedded | kube-apiserver + etcd | Ratio |\n|---|---:|---:|---:|");
        for (measure, unit) in &self.order {
            let (own, other) = (self.median(measure, "capstan"), self.median(measure, "kube-apiserver + etcd"));
            let ratio = if *unit == Unit::PerSecond { own / other } else { other / own };
            let show = |number: f64| match unit {
                Unit::Micros => format!("{:.2} ms", number / 1e3),
                Unit::Millis => format!("{number:.0} ms"),
                Unit::PerSecond => format!("{number:.0}/s"),
                Unit::Memory => format!("{number:.0} MiB"),
            };
            println!("| {measure} | {} | {} | {ratio:.1} |", show(own), show(other));
        }
    }
}
