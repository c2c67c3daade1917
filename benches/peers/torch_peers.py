#!/usr/bin/env python3
"""What PyTorch makes of the same work on the same card: the peers of `rumik-run bench`.

    python3 benches/peers/torch_peers.py [--only ceilings,int4] [--positions 512] [--repeats 200]

Needs PyTorch with CUDA; `stock` and `codec` need transformers too. The weights are random and of the real model's shapes
(3.4 billion parameters), because speed does not depend on their values. Every line printed is one JSON object with medians and
the 10th and 90th percentile in milliseconds. Run it in the same job as the product and quote ratios: absolute figures move from
card to card.

    ceilings  a device-to-device copy, a read of all memory, a large bf16 product
    stock     transformers' Cohere2 as the released inference code runs it: eager, growing cache, a host decision per token
    bf16      one decode step as a CUDA graph: packed projections, fixed cache, audio rows only, compiled
    int4      the same step with PyTorch's own int4 kernel, groups of 128 (tinygemm, which torchao uses)
    batch     bf16 with 8, 32 and 64 streams
    prefill   a prompt of 34 tokens in bf16 as a CUDA graph
    codec     transformers' MimiModel.decode, one frame and 100 frames
"""

import argparse
import json
import math
import statistics
import time

import torch
import torch.nn.functional as F

HIDDEN, LAYERS, INNER = 2048, 36, 11008
HEADS, KV_HEADS, HEAD_DIM = 16, 4, 128
VOCABULARY, AUDIO_ROWS = 277404, 16385
Q, KV = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
GROUP = 128
PROMPT = 34
TOP_K, TEMPERATURE = 30, 0.8
DEVICE = "cuda"


def report(name, **figures):
    print(json.dumps({"peer": name, **figures}), flush=True)


def spread(times):
    """Median, 10th and 90th percentile of times in milliseconds."""
    deciles = statistics.quantiles(times, n=10, method="inclusive")
    return {"ms": round(statistics.median(times), 4), "p10": round(deciles[0], 4), "p90": round(deciles[-1], 4)}


def timed(work, repeats, warm_up=5):
    """Milliseconds of each call of `work`, between two events on the stream."""
    for _ in range(warm_up):
        work()
    marks = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)]
    torch.cuda.synchronize()
    for before, after in marks:
        before.record()
        work()
        after.record()
    torch.cuda.synchronize()
    return [before.elapsed_time(after) for before, after in marks]


def captured(step):
    """`step` as a CUDA graph, after the runs that compilation and the allocator need; returns its replay."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def random(*shape, scale=0.02):
    return torch.randn(*shape, device=DEVICE, dtype=torch.bfloat16) * scale


def dense(outputs, inputs):
    """A bf16 matrix and its product."""
    weight = random(outputs, inputs)
    return weight, lambda x, w: F.linear(x, w)


def int4(outputs, inputs):
    """An int4 matrix in PyTorch's packing, with a scale and a zero point for every group of columns."""
    codes = torch.randint(0, 256, (outputs, inputs // 2), dtype=torch.uint8, device=DEVICE)
    packed = torch.ops.aten._convert_weight_to_int4pack(codes, 8)
    scales = random(inputs // GROUP, outputs, 2, scale=0.01)
    return (packed, scales), lambda x, w: torch.ops.aten._weight_int4pack_mm(x, w[0], GROUP, w[1])


def layer_weights(matrix):
    made = [matrix(Q + 2 * KV + 2 * INNER, HIDDEN), matrix(HIDDEN, Q), matrix(HIDDEN, INNER)]
    return [weight for weight, _ in made], made[0][1]


def norm(x, weight):
    return (F.layer_norm(x.float(), (HIDDEN,)) * weight).to(torch.bfloat16)


def rotate(x, cos, sin):
    """RoPE on pairs of neighbouring columns."""
    even, odd = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2).to(x.dtype)


def angles(positions):
    frequencies = 50000.0 ** (-torch.arange(0, HEAD_DIM, 2, device=DEVICE).float() / HEAD_DIM)
    angle = positions.float()[:, None] * frequencies
    return angle.cos(), angle.sin()


def slides(layer):
    """Three layers with a window and RoPE, then one that sees everything and has none."""
    return layer % 4 != 3


class Decoder:
    """One step of `streams` streams over a cache of `positions`, ready to be captured."""

    def __init__(self, matrix, streams, positions):
        self.layers, products = zip(*(layer_weights(matrix) for _ in range(LAYERS)))
        self.norm_weight = torch.ones(HIDDEN, device=DEVICE)
        self.head, self.embedding = random(AUDIO_ROWS, HIDDEN), random(AUDIO_ROWS, HIDDEN)
        cache = lambda: torch.zeros(streams, KV_HEADS, positions, HEAD_DIM, device=DEVICE, dtype=torch.bfloat16)
        self.keys, self.values = [cache() for _ in range(LAYERS)], [cache() for _ in range(LAYERS)]
        self.position = torch.zeros(1, dtype=torch.long, device=DEVICE)
        self.tokens = torch.zeros(streams, dtype=torch.long, device=DEVICE)
        self.columns = torch.arange(positions, device=DEVICE)
        product = products[0]

        def layer(x, norm_weight, weights, keys, values, position, mask, cos, sin, rope: bool):
            into, out, down = weights
            q, k, v, gate, up = product(norm(x, norm_weight), into).split([Q, KV, KV, INNER, INNER], -1)
            heads = lambda t: t.view(streams, -1, 1, HEAD_DIM)
            q, k, v = heads(q), heads(k), heads(v)
            if rope:
                q, k = rotate(q, cos, sin), rotate(k, cos, sin)
            keys.index_copy_(2, position, k)
            values.index_copy_(2, position, v)
            seen = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask, enable_gqa=True)
            return x + product(seen.reshape(streams, Q), out) + product(F.silu(gate) * up, down)

        def choose(x, norm_weight, head):
            logits = F.linear(norm(x, norm_weight), head).float() / TEMPERATURE
            best, rows = torch.topk(logits, TOP_K)
            gumbel = -torch.log(-torch.log(torch.rand_like(best).clamp_min(1e-9)))
            return rows.gather(1, (best + gumbel).argmax(-1, keepdim=True)).squeeze(1)

        self.layer = torch.compile(layer, fullgraph=True, dynamic=False)
        self.choose = torch.compile(choose, fullgraph=True, dynamic=False)

    def step(self):
        mask = torch.where(self.columns <= self.position, 0.0, -math.inf).to(torch.bfloat16)[None, None, None]
        cos, sin = angles(self.position)
        x = self.embedding[self.tokens]
        for index, weights in enumerate(self.layers):
            cache = self.keys[index], self.values[index]
            x = self.layer(x, self.norm_weight, weights, *cache, self.position, mask, cos, sin, slides(index))
        self.tokens.copy_(self.choose(x, self.norm_weight, self.head))
        self.position.add_(1).remainder_(len(self.columns))


def decode(name, matrix, streams, positions, repeats):
    torch.cuda.reset_peak_memory_stats()
    begun = time.perf_counter()
    replay = captured(Decoder(matrix, streams, positions).step)
    ready = time.perf_counter() - begun
    figures = spread(timed(replay, repeats))
    report(name, streams=streams, positions=positions, **figures, tokens_per_second=round(streams * 1e3 / figures["ms"], 1),
           ready_s=round(ready, 1), memory_gb=round(torch.cuda.max_memory_allocated() / 1e9, 2))
    torch._dynamo.reset()
    torch.cuda.empty_cache()


def ceilings(_):
    source = torch.randn(1 << 30, device=DEVICE)
    target = torch.empty_like(source)
    copy, read = spread(timed(lambda: target.copy_(source), 20)), spread(timed(source.sum, 20))
    report("copy", gb_per_second=round(2 * source.nbytes / copy["ms"] / 1e6, 1), **copy)
    report("read", gb_per_second=round(source.nbytes / read["ms"] / 1e6, 1), **read)
    del source, target
    a, b = random(8192, 8192), random(8192, 8192)
    product = spread(timed(lambda: a @ b, 10))
    report("bf16 product", tflops=round(2 * 8192**3 / product["ms"] / 1e9, 1), **product)


def stock(options):
    from transformers import Cohere2Config, Cohere2ForCausalLM

    config = Cohere2Config(vocab_size=VOCABULARY, hidden_size=HIDDEN, intermediate_size=INNER, num_hidden_layers=LAYERS,
                           num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, head_dim=HEAD_DIM, logit_scale=1.0,
                           max_position_embeddings=8192, sliding_window=4096, tie_word_embeddings=True)
    config._attn_implementation = "sdpa"
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(DEVICE):
        model = Cohere2ForCausalLM(config).eval()
    torch.set_default_dtype(torch.float32)
    audio = torch.arange(VOCABULARY - AUDIO_ROWS, VOCABULARY, device=DEVICE)

    def speak(tokens):
        begun = time.perf_counter()
        out = model(input_ids=torch.randint(0, VOCABULARY, (1, PROMPT), device=DEVICE), use_cache=True, logits_to_keep=1)
        torch.cuda.synchronize()
        prompted = time.perf_counter()
        for _ in range(tokens):
            best, rows = torch.topk(out.logits[:, -1].float().index_select(1, audio) / TEMPERATURE, TOP_K)
            token = audio[rows.gather(1, torch.multinomial(best.softmax(-1), 1))]
            token.item()  # the released code decides on the host whether to go on
            out = model(input_ids=token, past_key_values=out.past_key_values, use_cache=True)
        torch.cuda.synchronize()
        return prompted - begun, (time.perf_counter() - prompted) / tokens

    speak(8)
    prompt, token = speak(options.repeats)
    report("stock", prefill_ms=round(prompt * 1e3, 2), tokens_per_second=round(1 / token, 1),
           memory_gb=round(torch.cuda.max_memory_allocated() / 1e9, 2))


def prefill(_):
    layers, products = zip(*(layer_weights(dense) for _ in range(LAYERS)))
    start, weight = random(PROMPT, HIDDEN, scale=1.0), torch.ones(HIDDEN, device=DEVICE)
    cos, sin = angles(torch.arange(PROMPT, device=DEVICE))
    product = products[0]

    def layer(x, weights, rope: bool):
        q, k, v, gate, up = product(norm(x, weight), weights[0]).split([Q, KV, KV, INNER, INNER], -1)
        q, k, v = (t.view(PROMPT, -1, HEAD_DIM).transpose(0, 1)[None] for t in (q, k, v))
        if rope:
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return x + product(seen[0].transpose(0, 1).reshape(PROMPT, Q), weights[1]) + product(F.silu(gate) * up, weights[2])

    compiled = torch.compile(layer, fullgraph=True, dynamic=False)

    def run():
        x = start
        for index, weights in enumerate(layers):
            x = compiled(x, weights, slides(index))
        return x

    report("prefill", tokens=PROMPT, **spread(timed(captured(run), 50)))


def codec(_):
    from transformers import MimiConfig, MimiModel

    model = MimiModel(MimiConfig(num_quantizers=8)).eval().to(DEVICE, torch.bfloat16)
    for frames in (1, 100):
        codes = torch.randint(0, 2048, (1, 8, frames), device=DEVICE)
        report("codec", frames=frames, **spread(timed(lambda: model.decode(codes), 20)))


def main():
    peers = {
        "ceilings": ceilings,
        "stock": stock,
        "bf16": lambda o: decode("bf16", dense, 1, o.positions, o.repeats),
        "int4": lambda o: decode("int4", int4, 1, o.positions, o.repeats),
        "batch": lambda o: [decode("bf16", dense, streams, o.positions, 50) for streams in (8, 32, 64)],
        "prefill": prefill,
        "codec": codec,
    }
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(peers), help="peers to run, separated by commas")
    parser.add_argument("--positions", type=int, default=512, help="positions of the cache")
    parser.add_argument("--repeats", type=int, default=200, help="steps to time")
    options = parser.parse_args()
    report("device", gpu=torch.cuda.get_device_name(), torch=torch.__version__)
    for name in options.only.split(","):
        try:
            with torch.inference_mode():
                peers[name](options)
        except Exception as error:  # one peer that fails must not cost the others' figures
            report(name, error=f"{type(error).__name__}: {error}"[:400])


if __name__ == "__main__":
    main()
