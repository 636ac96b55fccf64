//! BPF time for managed stacks, beside native ones of the same depth.

use anyhow::Result;

use super::Effort;
use crate::bench::figure::Figure;
use crate::bench::measure;
use crate::bench::report;
use crate::bench::scenes::Scene;

const PART: &str = "stacks";
const DEPTHS: [u32; 2] = [5, 50];
/// Windows that one recording is as long as.
const WINDOWS: f64 = 3.0;

/// Measures this part.
pub fn measure(effort: Effort) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for depth in DEPTHS {
        for (kind, scene) in
            [("native", Scene::Recursion { depth }), ("managed", Scene::DotNetRecursion { depth })]
        {
            let measured = measure::under_strata(scene, effort.seconds * WINDOWS, 0.0)?;
            let name = format!("{kind}, depth {depth}");
            let figure =
                Figure::new(PART, name, measured.bpf_us_per_sample, "µs a sample").note(format!(
                    "{:.0} samples of {:.1} frames, {:.2} % complete; {:.2} times the bare program",
                    measured.samples,
                    measured.frames_per_sample,
                    measured.complete_percent,
                    measured.ratio_to_bare
                ));
            figures.push(match report::most_bpf_us(&scene.name()) {
                Some(bound) => figure.at_most(bound),
                None => figure,
            });
        }
    }
    Ok(figures)
}
