//! The SEANet decoder: latents at 25 positions a second to samples, by convolutions alone.

use super::conv::{Activation, Conv, History, Shape};
use crate::config::CodecConfig;
use crate::error::Result;
use crate::tensors::TensorFile;

/// Convolution; per ratio an upsampling convolution and residual units; convolution to one channel.
#[derive(Debug)]
pub(super) struct SeaNet {
    pub(super) layers: Vec<Layer>,
}

/// One step of the chain. ELU stands in front of every convolution but the first and is part of it.
#[derive(Debug)]
pub(super) enum Layer {
    /// A convolution, plain or transposed.
    Conv(Conv),
    /// `x + narrow(elu(wide(elu(x))))`: through fewer channels and back.
    Residual(Conv, Conv),
}

/// Histories of the layer's convolutions.
#[derive(Clone, Debug)]
pub(super) enum LayerState {
    Conv(History),
    Residual(History, History),
}

impl SeaNet {
    /// Reads `decoder.layers.*`; the numbers of ELU layers are skipped, they have no weights.
    pub(super) fn load(file: &TensorFile, config: &CodecConfig) -> Result<SeaNet> {
        let name = |index: usize| format!("decoder.layers.{index}.conv");
        let mut channels = config.num_filters << config.upsampling_ratios.len();
        let first = Shape { inputs: config.hidden_size, outputs: channels, kernel: config.kernel_size };
        let mut layers = vec![Layer::Conv(Conv::load(file, &name(0), first, 1, Activation::None)?)];
        let mut index = 1;
        for &ratio in &config.upsampling_ratios {
            let shape = Shape { inputs: channels, outputs: channels / 2, kernel: 2 * ratio };
            let conv = Conv::load_transposed(file, &name(index + 1), shape, ratio, Activation::Elu)?;
            layers.push(Layer::Conv(conv));
            channels /= 2;
            index += 2;
            let mut dilation = 1;
            for _ in 0..config.num_residual_layers {
                layers.push(residual(file, config, index, channels, dilation)?);
                dilation *= config.dilation_growth_rate;
                index += 1;
            }
        }
        let last = Shape { inputs: channels, outputs: 1, kernel: config.last_kernel_size };
        layers.push(Layer::Conv(Conv::load(file, &name(index + 1), last, 1, Activation::Elu)?));
        Ok(SeaNet { layers })
    }

    /// The state before the first position.
    pub(super) fn state(&self) -> Vec<LayerState> {
        let state = |layer: &Layer| match layer {
            Layer::Conv(conv) => LayerState::Conv(conv.history()),
            Layer::Residual(wide, narrow) => LayerState::Residual(wide.history(), narrow.history()),
        };
        self.layers.iter().map(state).collect()
    }

    /// Replaces the latents `x: [t, hidden]` by samples; `y` and `z` are scratch.
    pub(super) fn step(&self, states: &mut [LayerState], x: &mut Vec<f32>, y: &mut Vec<f32>, z: &mut Vec<f32>) {
        for (layer, state) in self.layers.iter().zip(states) {
            layer.step(state, x, y, z);
        }
    }
}

fn residual(file: &TensorFile, config: &CodecConfig, index: usize, channels: usize, dilation: usize) -> Result<Layer> {
    let name = |part: usize| format!("decoder.layers.{index}.block.{part}.conv");
    let inner = channels / config.compress;
    let wide = Shape { inputs: channels, outputs: inner, kernel: config.residual_kernel_size };
    let narrow = Shape { inputs: inner, outputs: channels, kernel: 1 };
    Ok(Layer::Residual(
        Conv::load(file, &name(1), wide, dilation, Activation::Elu)?,
        Conv::load(file, &name(3), narrow, 1, Activation::Elu)?,
    ))
}

impl Layer {
    /// Replaces `x` by the layer's output; `y` and `z` are scratch.
    pub(super) fn step(&self, state: &mut LayerState, x: &mut Vec<f32>, y: &mut Vec<f32>, z: &mut Vec<f32>) {
        match (self, state) {
            (Layer::Conv(conv), LayerState::Conv(history)) => {
                conv.step(history, x, y);
                std::mem::swap(x, y);
            }
            (Layer::Residual(wide, narrow), LayerState::Residual(first, second)) => {
                wide.step(first, x, y);
                narrow.step(second, y, z);
                x.iter_mut().zip(z.iter()).for_each(|(x, z)| *x += z);
            }
            _ => unreachable!("a state is made by its own decoder"),
        }
    }
}

impl LayerState {
    pub(super) fn reset(&mut self) {
        match self {
            LayerState::Conv(history) => history.reset(),
            LayerState::Residual(first, second) => {
                first.reset();
                second.reset();
            }
        }
    }
}
