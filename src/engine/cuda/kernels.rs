//! What the kernels take: the structs of `kernels/*.cu`, field by field.

/// Address in device memory; 0 stands for a buffer that is not used.
pub type Address = u64;

/// One (sequence, position) of a launch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C, align(16))]
pub struct Column {
    /// Whose cache.
    pub slot: i32,
    /// Where in the sequence; between passes, of the newest token in the cache.
    pub position: i32,
    /// 0 when the sequence has ended.
    pub live: i32,
    /// Row of the residual stream.
    pub row: i32,
}

/// Rounded activations, in n-tiles of 4 columns by one group.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Digits {
    /// `[256]` u32 for each tile.
    pub words: Address,
    /// `[4]` pairs of f32 for each tile.
    pub scales: Address,
    /// Groups of a vector.
    pub groups: i32,
    /// 1: tiles are `[n-tile][group]`, in the order of mma.sync; more: `[n-tile / beside][group][beside]`, in that of wgmma.
    pub beside: i32,
}

/// Weights and cache of a decoder layer.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Layer {
    /// int4 tiles of keys, values, queries, gate and up.
    pub input: Address,
    /// int4 tiles of down_proj and o_proj.
    pub output: Address,
    /// `[hidden]` f32.
    pub norm: Address,
    /// `[positions, head_dim / 2]` pairs of f32, or 0 for a layer without position encoding.
    pub rope: Address,
    /// `[slots, kv_heads, positions, head_dim]` f16.
    pub keys: Address,
    /// `[slots, kv_heads, positions / 32, head_dim, 32]` f16.
    pub values: Address,
    /// Positions seen; 0 for all.
    pub window: i32,
    /// Of the layer, from 1.
    pub number: i32,
}

/// What the persistent kernel takes beside the other structs.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Frame {
    /// Tiles of `project_in`, all layers.
    pub input: Address,
    /// Tiles of `project_out`, all layers.
    pub output: Address,
    /// Bytes of a layer in `input`.
    pub input_stride: u64,
    /// Bytes of a layer in `output`.
    pub output_stride: u64,
    /// `[layers]` of [`Layer`].
    pub layers: Address,
    /// `[9, 32]` u32, zeros.
    pub counters: Address,
    /// `[columns, tiles of the head]` u32.
    pub maxima: Address,
    /// Layers.
    pub count: i32,
    /// Columns.
    pub columns: i32,
    /// Tiles of `project_in` in a layer.
    pub tiles: i32,
    /// Passes; one without `head`.
    pub steps: i32,
    /// 1: scores and a choice before each pass.
    pub head: i32,
    /// 1: the last step passes through the layers as well.
    pub last_pass: i32,
    /// Packets of weights a block has under way.
    pub depth: i32,
    /// Packets that its ring holds.
    pub slots: i32,
    /// Tiles whose partial sums a block keeps.
    pub round: i32,
    /// Packets of down_proj that wait only for the first part of the MLP, with one column.
    pub early_packets: i32,
    /// Tiles of each block that leave that part.
    pub early_tiles: i32,
    /// Where things lie in a block's shared memory, in bytes: digits, their scales, layers, partial sums, the ring.
    pub places: [u32; 5],
}

/// Sizes of the model.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Shape {
    /// Width of the residual stream.
    pub hidden: i32,
    /// Width of the MLP.
    pub intermediate: i32,
    /// Query heads.
    pub heads: i32,
    /// Key/value heads.
    pub kv_heads: i32,
    /// Columns a head.
    pub head_dim: i32,
    /// Positions of a slot's cache, a multiple of 64.
    pub positions: i32,
    /// Of the LayerNorms.
    pub eps: f32,
    /// `head_dim ^ -0.5`.
    pub scale: f32,
}

/// Working memory of the layers.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Buffers {
    /// `[rows, hidden]` f32.
    pub x: Address,
    /// `[columns, heads * head_dim]` f32.
    pub q: Address,
    /// `[columns, intermediate]` f32.
    pub mlp: Address,
    /// LayerNorm of x.
    pub hidden: Digits,
    /// Attention's output.
    pub attention: Digits,
    /// `mlp`, rounded.
    pub inner: Digits,
    /// Attention's partial results.
    pub partial: Address,
    /// Their maxima and sums.
    pub partial_ml: Address,
    /// `[columns, 2, 4, hidden]` f32: what `project_out` by warpgroups leaves to be added to `x`.
    pub out_partial: Address,
    /// `[columns of a block, intermediate]` pairs of u32, zeros: values of MLP groups whose units are different blocks'.
    pub exchange: Address,
    /// u32: number of the layer whose `project_in` is complete; a line of memory further on, how many units of keys, values and queries are.
    pub inner_ready: Address,
    /// Counters, `[intermediate / 128]`.
    pub mlp_arrivals: Address,
    /// Counters, `[columns, items]`.
    pub attention_arrivals: Address,
    /// `[columns]` of [`Column`].
    pub columns: Address,
}

/// Weights after the last layer.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Head {
    /// int8 tiles, or bf16 rows.
    pub rows: Address,
    /// `[tiles, 16]` i32: the row of each row of a tile, -1 for none; 0 when they are in order.
    pub row_of: Address,
    /// `[rows]` f32, int8 only.
    pub row_scale: Address,
    /// `[hidden]` f32.
    pub norm: Address,
    /// `[hidden]` f32.
    pub stop_norm: Address,
    /// `[hidden]` f32.
    pub stop_norm_bias: Address,
    /// `[inner, hidden]` f32.
    pub stop_up: Address,
    /// `[inner]` f32.
    pub stop_up_bias: Address,
    /// `[inner]` f32.
    pub stop_down: Address,
    /// `[rows]` f32.
    pub embedding_scale: Address,
    /// `[rows, hidden]` i8, in the head's order.
    pub embedding: Address,
    /// `[rows]` u32.
    pub ids: Address,
    /// Of the stop head's last layer.
    pub stop_down_bias: f32,
    /// Factor on the logits.
    pub logit_scale: f32,
    /// Of the last LayerNorm.
    pub eps: f32,
    /// 1 for bf16 rows.
    pub bf16: i32,
    /// Rows.
    pub count: i32,
    /// Width of the residual stream.
    pub hidden: i32,
    /// Width of the stop head's inner layer.
    pub inner: i32,
    /// The row of `</audio>`.
    pub end_row: i32,
    /// Token id of the first unit.
    pub first_unit: u32,
    /// Codes a frame.
    pub quantizers: i32,
    /// Steps before the end may be chosen.
    pub min_new_tokens: i32,
    /// P(stop) above which the end is forced.
    pub stop_threshold: f32,
    /// Tiles of a codebook, when `row_of` groups the rows by codebook.
    pub phase_tiles: i32,
    /// Padding.
    pub pad: i32,
}

/// Working memory after the last layer.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct HeadBuffers {
    /// `[rows, hidden]` f32.
    pub x: Address,
    /// `[columns]` of [`Column`].
    pub columns: Address,
    /// `[columns, rows of the head]` f32.
    pub logits: Address,
    /// `[columns, inner]` f32.
    pub stop: Address,
    /// `[columns, hidden]` f32, or 0.
    pub normed: Address,
    /// `[slots]` of [`Sequence`].
    pub sequences: Address,
    /// `[columns]` of [`FrameOut`].
    pub out: Address,
}

/// Most tokens of a frame.
pub const FRAME: usize = 16;

/// What a slot's choices depend on.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Sequence {
    /// 0: greedy.
    pub temperature: f32,
    /// Rows that take part.
    pub top_k: i32,
    /// Cap on the tokens.
    pub max_new: i32,
    /// Tokens chosen.
    pub step: i32,
    /// Low word of the seed.
    pub seed_low: u32,
    /// High word of the seed.
    pub seed_high: u32,
    /// Number of the utterance.
    pub sequence: u32,
    /// Codes in the open frame.
    pub partial: i32,
    /// The open frame.
    pub codes: [u32; FRAME],
}

/// What one column made in one frame period.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct FrameOut {
    /// Tokens chosen.
    pub tokens: i32,
    /// Frames completed, 0 or 1.
    pub frames: i32,
    /// How the sequence ended: 0 not, then as `END_*`.
    pub end: i32,
    /// Padding.
    pub pad: i32,
    /// P(stop) before each token.
    pub stop_probability: [f32; FRAME],
    /// The tokens.
    pub token: [u32; FRAME],
    /// The frame.
    pub code: [u32; FRAME],
}

/// [`FrameOut::end`]: P(stop) passed the threshold.
pub const END_STOP_HEAD: i32 = 1;
/// [`FrameOut::end`]: `</audio>` was chosen.
pub const END_AUDIO: i32 = 2;
/// [`FrameOut::end`]: the cap.
pub const END_LENGTH: i32 = 3;
/// [`FrameOut::end`]: a logit or P(stop) was not finite.
pub const END_NOT_FINITE: i32 = 4;

// The kernels assert the same sizes.
const _: () = {
    assert!(size_of::<Layer>() == 56 && size_of::<Shape>() == 32 && size_of::<Buffers>() == 160);
    assert!(size_of::<Frame>() == 120 && size_of::<Digits>() == 24);
    assert!(size_of::<Head>() == 152 && size_of::<HeadBuffers>() == 56);
    assert!(size_of::<Sequence>() == 96 && size_of::<FrameOut>() == 208 && size_of::<Column>() == 16);
};
