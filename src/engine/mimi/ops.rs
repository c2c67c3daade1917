//! Every operation of the decoder as a plain function over a whole sequence: slow, obvious, the meaning of the fast
//! paths here and of the kernels on devices.
//!
//! Sequences are row-major `[t, c]`, time first. Sums run in f64, so that a result is the exact value rounded once and
//! a comparison measures only the other side.

/// Codebook vectors of a trained quantizer: `embed_sum / max(cluster_usage, 1e-5)`.
///
/// `embed_sum: [codes, dim]`, `cluster_usage: [codes]`; returns `[codes, dim]`.
///
/// Source: `MimiEuclideanCodebook` of transformers, which keeps sums and counts instead of means.
pub fn codebook(embed_sum: &[f32], cluster_usage: &[f32]) -> Vec<f32> {
    const LEAST_USAGE: f32 = 1e-5;
    let dim = embed_sum.len() / cluster_usage.len();
    embed_sum.iter().enumerate().map(|(i, sum)| sum / cluster_usage[i / dim].max(LEAST_USAGE)).collect()
}

/// Multiplies rows by a matrix: `y[t, n] = sum_k x[t, k] * w[n, k]`.
pub fn linear(x: &[f32], w: &[f32], k: usize) -> Vec<f32> {
    let dot =
        |row: &[f32], w: &[f32]| row.iter().zip(w).map(|(&x, &w)| f64::from(x) * f64::from(w)).sum::<f64>() as f32;
    x.chunks(k).flat_map(|row| w.chunks(k).map(move |w| dot(row, w))).collect()
}

/// Causal convolution of stride 1 over zeros on the left: `y[t, n] = bias[n] + sum_{c, k} w[n, c, k] * x[t - (kernel - 1 - k) * dilation, c]`.
///
/// `x: [t, c]`, `w: [n, c, kernel]`, `bias: [n]`; returns `[t, n]`.
pub fn causal_conv(x: &[f32], w: &[f32], bias: &[f32], kernel: usize, dilation: usize) -> Vec<f32> {
    let channels = w.len() / bias.len() / kernel;
    let mut y = Vec::with_capacity(x.len() / channels * bias.len());
    for t in 0..x.len() / channels {
        for (n, &bias) in bias.iter().enumerate() {
            let mut sum = f64::from(bias);
            for k in 0..kernel {
                let Some(past) = t.checked_sub((kernel - 1 - k) * dilation) else { continue };
                for c in 0..channels {
                    sum += f64::from(w[(n * channels + c) * kernel + k]) * f64::from(x[past * channels + c]);
                }
            }
            y.push(sum as f32);
        }
    }
    y
}

/// Causal transposed convolution: every input row adds `kernel` rows, `stride` apart; the last `kernel - stride` rows,
/// which later input would complete, are dropped. `y[t * stride + k, n] += sum_c w[c, n, k] * x[t, c]`, plus bias once.
///
/// `x: [t, c]`, `w: [c, n, kernel]`, `bias: [n]`; returns `[t * stride, n]`.
pub fn causal_conv_transpose(x: &[f32], w: &[f32], bias: &[f32], kernel: usize, stride: usize) -> Vec<f32> {
    let (outputs, channels) = (bias.len(), w.len() / bias.len() / kernel);
    let rows = x.len() / channels * stride;
    let mut y: Vec<f64> = (0..rows * outputs).map(|i| f64::from(bias[i % outputs])).collect();
    for (t, row) in x.chunks(channels).enumerate() {
        for (k, out) in (t * stride..rows).take(kernel).enumerate() {
            for n in 0..outputs {
                for (c, &x) in row.iter().enumerate() {
                    y[out * outputs + n] += f64::from(w[(c * outputs + n) * kernel + k]) * f64::from(x);
                }
            }
        }
    }
    y.into_iter().map(|v| v as f32).collect()
}

/// The same with one filter a channel and no bias: `y[t * stride + k, c] += w[c, k] * x[t, c]`.
///
/// `x: [t, c]`, `w: [c, kernel]`; returns `[t * stride, c]`.
pub fn depthwise_conv_transpose(x: &[f32], w: &[f32], channels: usize, stride: usize) -> Vec<f32> {
    let (kernel, rows) = (w.len() / channels, x.len() / channels * stride);
    let mut y = vec![0.0f64; rows * channels];
    for (t, row) in x.chunks(channels).enumerate() {
        for (k, out) in (t * stride..rows).take(kernel).enumerate() {
            for (c, &x) in row.iter().enumerate() {
                y[out * channels + c] += f64::from(w[c * kernel + k]) * f64::from(x);
            }
        }
    }
    y.into_iter().map(|v| v as f32).collect()
}

/// LayerNorm of one row with weight and bias; the variance is the mean square around the mean.
pub fn layer_norm(x: &[f32], weight: &[f32], bias: &[f32], epsilon: f32) -> Vec<f32> {
    let mean = x.iter().map(|&v| f64::from(v)).sum::<f64>() / x.len() as f64;
    let variance = x.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum::<f64>() / x.len() as f64;
    let scale = 1.0 / (variance + f64::from(epsilon)).sqrt();
    let affine = |(i, &v): (usize, &f32)| (f64::from(v) - mean) * scale * f64::from(weight[i]) + f64::from(bias[i]);
    x.iter().enumerate().map(|item| affine(item) as f32).collect()
}

/// ELU: `x` above zero, `e^x - 1` below.
pub fn elu(x: f32) -> f32 {
    if x > 0.0 { x } else { f64::from(x).exp_m1() as f32 }
}

/// GELU with the error function, not its tanh approximation.
pub fn gelu(x: f32) -> f32 {
    let x = f64::from(x);
    (0.5 * x * (1.0 + libm::erf(x * std::f64::consts::FRAC_1_SQRT_2))) as f32
}

/// Cosine and sine of `position * theta^(-2 j / d)` for `j` in `0..d / 2`.
///
/// In f64 from the running position: neither a table's length nor f32's 24 bits limit how long a stream may run.
pub fn rotary(position: u64, theta: f64, d: usize) -> impl Iterator<Item = (f32, f32)> {
    (0..d / 2).map(move |j| {
        let angle = position as f64 * theta.powf(-2.0 * j as f64 / d as f64);
        (angle.cos() as f32, angle.sin() as f32)
    })
}

/// Rotates the pairs `(j, j + d / 2)` of one head, the half-split layout.
pub fn rotate_half(x: &mut [f32], rotary: impl Iterator<Item = (f32, f32)>) {
    let (low, high) = x.split_at_mut(x.len() / 2);
    for ((a, b), (cos, sin)) in low.iter_mut().zip(high).zip(rotary) {
        (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
    }
}

/// Attention of one head at the newest position: softmax of `q . k / sqrt(d)` over the last `window` positions, the
/// newest included, times the values.
///
/// `q: [d]`, `k, v: [t, d]`; returns `[d]`.
pub fn attention(q: &[f32], k: &[f32], v: &[f32], window: usize) -> Vec<f32> {
    let d = q.len();
    let first = (k.len() / d).saturating_sub(window) * d;
    let score =
        |k: &[f32]| q.iter().zip(k).map(|(&q, &k)| f64::from(q) * f64::from(k)).sum::<f64>() / (d as f64).sqrt();
    let scores: Vec<f64> = k[first..].chunks(d).map(score).collect();
    let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
    let total: f64 = weights.iter().sum();
    let mut y = vec![0.0f64; d];
    for (weight, v) in weights.iter().zip(v[first..].chunks(d)) {
        y.iter_mut().zip(v).for_each(|(y, &v)| *y += weight / total * f64::from(v));
    }
    y.into_iter().map(|v| v as f32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unused_code_divides_by_the_least_usage() {
        assert_eq!(codebook(&[2.0, 4.0, 1e-5, 0.0], &[2.0, 0.0]), [1.0, 2.0, 1.0, 0.0]);
    }

    #[test]
    fn linear_multiplies_by_rows_of_the_matrix() {
        assert_eq!(linear(&[1.0, 2.0, 3.0, 4.0], &[1.0, 0.0, 0.0, 1.0, 1.0, 1.0], 2), [1.0, 2.0, 3.0, 3.0, 4.0, 7.0]);
    }

    #[test]
    fn a_causal_convolution_sees_zeros_then_the_past() {
        // Two taps, the second on the newest sample; an impulse shows the filter.
        assert_eq!(causal_conv(&[1.0, 0.0, 0.0], &[10.0, 1.0], &[0.5], 2, 1), [1.5, 10.5, 0.5]);
        assert_eq!(causal_conv(&[1.0, 0.0, 0.0], &[10.0, 1.0], &[0.0], 2, 2), [1.0, 0.0, 10.0]);
        // Channels: w[n][c][k] with n = 2, c = 2, k = 1.
        assert_eq!(causal_conv(&[1.0, 2.0], &[1.0, 10.0, 100.0, 1000.0], &[0.0, 0.0], 1, 1), [21.0, 2100.0]);
    }

    #[test]
    fn a_transposed_convolution_overlaps_and_drops_its_tail() {
        let y = causal_conv_transpose(&[1.0, 10.0], &[1.0, 2.0, 3.0, 4.0], &[0.5], 4, 2);
        assert_eq!(y, [1.5, 2.5, 13.5, 24.5]);
        assert_eq!(depthwise_conv_transpose(&[1.0, 10.0], &[1.0, 2.0, 3.0, 4.0], 1, 2), [1.0, 2.0, 13.0, 24.0]);
        // w[c][n][k] with c = 1, n = 2, k = 1.
        assert_eq!(causal_conv_transpose(&[3.0], &[1.0, 2.0], &[0.0, 0.0], 1, 1), [3.0, 6.0]);
    }

    #[test]
    fn layer_norm_has_mean_bias_and_unit_variance_before_the_weight() {
        let y = layer_norm(&[1.0, 3.0], &[2.0, 2.0], &[0.25, 0.0], 0.0);
        assert_eq!(y, [-1.75, 2.0]);
    }

    #[test]
    fn activations_take_their_textbook_values() {
        assert_eq!((elu(2.0), elu(0.0)), (2.0, 0.0));
        assert!((elu(-1.0) - (1.0 / std::f32::consts::E - 1.0)).abs() < 1e-7);
        assert!((gelu(1.0) - 0.841_344_7).abs() < 1e-6 && (gelu(-1.0) + 0.158_655_26).abs() < 1e-6);
    }

    #[test]
    fn rotation_is_half_split_and_depends_on_distance_only() {
        let mut x = [1.0, 0.0, 0.0, 0.0];
        rotate_half(&mut x, rotary(1, 10000.0, 4));
        assert_eq!(x, [1f32.cos(), 0.0, 1f32.sin(), 0.0]);
        let product = |p: u64, q: u64| {
            let (mut a, mut b) = ([0.3, -0.5, 0.7, 0.2], [0.9, 0.1, -0.4, 0.6]);
            rotate_half(&mut a, rotary(p, 10000.0, 4));
            rotate_half(&mut b, rotary(q, 10000.0, 4));
            a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>()
        };
        assert!((product(17, 4) - product(90_013, 90_000)).abs() < 1e-6);
    }

    #[test]
    fn attention_counts_the_newest_position_in_its_window() {
        let (k, v) = ([0.0; 3], [1.0, 10.0, 100.0]);
        assert_eq!(attention(&[1.0], &k, &v, 2), [55.0]);
        assert_eq!(attention(&[1.0], &k, &v, 9), [37.0]);
        let weighted = attention(&[2.0], &[0.0, 1.0], &[0.0, 1.0], 2)[0];
        assert!((weighted - 1.0 / (1.0 + (-2f32).exp())).abs() < 1e-6);
    }
}
