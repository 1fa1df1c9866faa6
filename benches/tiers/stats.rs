//! What several runs say together. Pure.

/// The middle value, or the mean of the two in the middle; `None` of nothing.
pub(crate) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        n if n % 2 == 1 => Some(values[middle]),
        _ => Some(f64::midpoint(values[middle - 1], values[middle])),
    }
}

/// The 95 % interval of the mean of what these are drawn from (Student's t; two at least).
pub(crate) fn interval(values: &[f64]) -> Option<(f64, f64)> {
    let n = values.len();
    let t = *T975.get(n.checked_sub(2)?).unwrap_or(&T975[T975.len() - 1]);
    let mean = values.iter().sum::<f64>() / n as f64;
    let squares: f64 = values.iter().map(|v| (v - mean).powi(2)).sum();
    let half = t * (squares / (n - 1) as f64 / n as f64).sqrt();
    Some((mean - half, mean + half))
}

/// The 97.5th percentile of Student's distribution with 1, 2, … degrees of freedom. Of more
/// runs than that the interval is told a little wider than it is.
const T975: [f64; 10] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
];

/// `None` of nothing.
pub(crate) fn geometric_mean(values: &[f64]) -> Option<f64> {
    let logs: f64 = values.iter().map(|v| v.ln()).sum();
    (!values.is_empty()).then(|| (logs / values.len() as f64).exp())
}
