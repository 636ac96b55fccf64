//! Differences between pairs of runs, and their confidence intervals.

/// The mean of differences, with its 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    pub mean: f64,
    pub half_width: f64,
    pub median: f64,
    /// Hodges and Lehmann's estimate. `None`: there are too few values for its interval.
    pub pseudomedian: Option<Pseudomedian>,
    pub count: usize,
}

/// The median of the means of every two values, with a 95 % interval by Wilcoxon's signed ranks: a stall of
/// the machine, which is in some values only, hardly moves it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pseudomedian {
    pub value: f64,
    pub from: f64,
    pub to: f64,
}

/// How much larger each value is than its partner, in percent of the partners' mean.
pub fn relative(values: &[f64], partners: &[f64]) -> Estimate {
    let count = values.len().min(partners.len());
    let base = partners.iter().take(count).sum::<f64>() / count as f64;
    let differences = values.iter().zip(partners).map(|(value, partner)| value - partner);
    estimate(&differences.map(|difference| 100.0 * difference / base).collect::<Vec<_>>())
}

/// The mean of independent values.
pub fn estimate(values: &[f64]) -> Estimate {
    let count = values.len();
    let mean = values.iter().sum::<f64>() / count as f64;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    let freedom = count as f64 - 1.0;
    let half_width = quantile(freedom) * (squares / freedom / count as f64).sqrt();
    Estimate { mean, half_width, median: median(values), pseudomedian: pseudomedian(values), count }
}

fn pseudomedian(values: &[f64]) -> Option<Pseudomedian> {
    // With fewer, the normal distribution is too far from that of the ranks.
    const LEAST: usize = 10;
    if values.len() < LEAST {
        return None;
    }
    let count = values.len() as f64;
    let mut means: Vec<f64> = values
        .iter()
        .enumerate()
        .flat_map(|(at, one)| values.iter().skip(at).map(move |other| (one + other) / 2.0))
        .collect();
    means.sort_by(f64::total_cmp);
    let spread = NORMAL * (count * (count + 1.0) * (2.0 * count + 1.0) / 24.0).sqrt();
    let left_out = (count * (count + 1.0) / 4.0 - spread).max(0.0) as usize;
    let at = |place: usize| means.get(place).copied().unwrap_or(f64::NAN);
    let last = means.len().saturating_sub(1);
    let (from, to) = (at(left_out), at(last.saturating_sub(left_out)));
    Some(Pseudomedian { value: median(&means), from, to })
}

/// Of the normal distribution, for 97.5 %.
const NORMAL: f64 = 1.959_964;

/// Of Student's distribution, for 97.5 %, by its expansion around the normal one: right to 1 %
/// from five degrees of freedom on.
fn quantile(freedom: f64) -> f64 {
    let first = (NORMAL.powi(3) + NORMAL) / 4.0;
    let second = (5.0 * NORMAL.powi(5) + 16.0 * NORMAL.powi(3) + 3.0 * NORMAL) / 96.0;
    NORMAL + first / freedom + second / freedom.powi(2)
}

/// The middle value.
pub fn median(values: &[f64]) -> f64 {
    percentile(values, 0.5)
}

/// The value below which this fraction of them lies.
pub fn percentile(values: &[f64], fraction: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().saturating_sub(1) as f64;
    let (place, part) = ((last * fraction).floor(), (last * fraction).fract());
    let at = |place: f64| sorted.get(place as usize).copied().unwrap_or(f64::NAN);
    if part == 0.0 { at(place) } else { at(place) * (1.0 - part) + at(place + 1.0) * part }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quantile_is_students() {
        for (freedom, expected) in [(5.0, 2.571), (9.0, 2.262), (19.0, 2.093), (1e9, 1.960)] {
            assert!((quantile(freedom) / expected - 1.0).abs() < 0.01, "{freedom}");
        }
    }

    #[test]
    fn what_both_of_a_pair_share_cancels_out() {
        let partners = [100.0, 200.0, 300.0, 400.0];
        let values = partners.map(|value| value + 25.0);
        let found = relative(&values, &partners);
        assert_eq!((found.mean, found.median, found.count), (10.0, 10.0, 4));
        assert!(found.half_width < 1e-9);
    }

    #[test]
    fn a_stall_hardly_moves_the_pseudomedian() {
        // 52 of the 210 means are left out at each end.
        let mut values: Vec<f64> = (1..=20).map(f64::from).collect();
        let before = estimate(&values).pseudomedian;
        assert_eq!(before, Some(Pseudomedian { value: 10.5, from: 7.5, to: 13.5 }));
        values[19] = 1_000.0;
        let found = estimate(&values);
        let after = found.pseudomedian.expect("enough values");
        assert!(found.half_width > 50.0 && after.value < 11.5 && after.to < 15.0, "{found:?}");
        assert_eq!(estimate(&values[..9]).pseudomedian, None);
    }

    #[test]
    fn percentiles_lie_between_their_neighbours() {
        let values = [4.0, 1.0, 3.0, 2.0];
        assert_eq!(median(&values), 2.5);
        assert_eq!((percentile(&values, 0.0), percentile(&values, 1.0)), (1.0, 4.0));
    }
}
