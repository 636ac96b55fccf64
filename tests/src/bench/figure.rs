//! A line of the table: a figure, and whether it is within its bound.

use serde::Serialize;

use super::pairs::{Estimate, Pseudomedian};
use super::report::print_columns;

/// Whether a figure is within its bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Verdict {
    Met,
    NotMet,
    /// The bound lies within the interval: more pairs, or a quieter machine, would decide.
    Unsure,
}

/// A measured value.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    /// The part of the group.
    pub part: String,
    pub name: String,
    pub value: f64,
    pub unit: String,
    /// Half the width of the 95 % interval, where there is one.
    pub plus_minus: Option<f64>,
    pub bound: Option<f64>,
    pub verdict: Option<Verdict>,
    /// How it was measured.
    pub note: String,
}

impl Figure {
    pub fn new(part: &str, name: impl Into<String>, value: f64, unit: &str) -> Self {
        Self {
            part: part.to_owned(),
            name: name.into(),
            value,
            unit: unit.to_owned(),
            plus_minus: None,
            bound: None,
            verdict: None,
            note: String::new(),
        }
    }

    /// A difference in percent, from pairs.
    pub fn difference(part: &str, name: impl Into<String>, estimate: &Estimate) -> Self {
        let mut figure = Self::new(part, name, estimate.mean, "%");
        figure.plus_minus = Some(estimate.half_width);
        let figure =
            figure.note(format!("{} pairs, median {:+.2}", estimate.count, estimate.median));
        match estimate.pseudomedian {
            Some(Pseudomedian { value, from, to }) => {
                figure.note(format!("pseudomedian {value:+.2}, {from:+.2} to {to:+.2}"))
            }
            None => figure,
        }
    }

    pub fn note(mut self, note: impl Into<String>) -> Self {
        let note = note.into();
        let between = if self.note.is_empty() || note.is_empty() { "" } else { "; " };
        self.note = format!("{}{between}{note}", self.note);
        self
    }

    /// Must not be above.
    pub fn at_most(mut self, bound: f64) -> Self {
        let around = self.plus_minus.unwrap_or(0.0);
        self.bound = Some(bound);
        self.verdict = Some(if self.value + around <= bound {
            Verdict::Met
        } else if self.value - around > bound {
            Verdict::NotMet
        } else {
            Verdict::Unsure
        });
        self
    }

    fn row(&self) -> Vec<String> {
        let digits = if self.value.abs() >= 100.0 { 0 } else { 2 };
        let around = self.plus_minus.map_or(String::new(), |half| format!(" ± {half:.digits$}"));
        vec![
            self.part.clone(),
            self.name.clone(),
            format!("{:.digits$}{around} {}", self.value, self.unit),
            self.bound.map_or(String::new(), |bound| format!("≤ {bound}")),
            match self.verdict {
                None => String::new(),
                Some(Verdict::Met) => "met".to_owned(),
                Some(Verdict::NotMet) => "NOT MET".to_owned(),
                Some(Verdict::Unsure) => "unsure".to_owned(),
            },
            self.note.clone(),
        ]
    }
}

/// Prints the table.
pub fn print(figures: &[Figure]) {
    println!("\n.NET: ± is half of the 95 % interval; unsure: the bound lies within it\n");
    let mut rows =
        vec![["part", "what", "figure", "bound", "verdict", "how"].map(String::from).to_vec()];
    rows.extend(figures.iter().map(Figure::row));
    print_columns(&rows);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_within_the_interval_is_neither_met_nor_missed() {
        let figure = |value, half| Figure {
            plus_minus: Some(half),
            ..Figure::new("steady", "loss", value, "%")
        };
        assert_eq!(figure(0.2, 0.1).at_most(0.5).verdict, Some(Verdict::Met));
        assert_eq!(figure(0.2, 0.4).at_most(0.5).verdict, Some(Verdict::Unsure));
        assert_eq!(figure(0.9, 0.3).at_most(0.5).verdict, Some(Verdict::NotMet));
    }
}
