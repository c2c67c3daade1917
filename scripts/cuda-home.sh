#!/bin/bash
# Puts together a CUDA 13.0 toolkit that compiles this project's kernels, from NVIDIA's Python wheels: no GPU, driver or
# system toolkit needed (about 104 MB to fetch, 270 MB unpacked).
#   scripts/cuda-home.sh [DEST]      default target/cuda-home
# Then: CUDA_HOME=DEST cargo build --release --features cuda
# Needs python3 with pip. 13.0 on purpose: PTX of a newer toolkit does not load on a driver of the 580 series.
set -euo pipefail
dest=${1:-target/cuda-home}
wheels=$(mktemp -d)
trap 'rm -rf "$wheels"' EXIT
platforms=(manylinux_2_27_x86_64 manylinux2014_x86_64 manylinux_2_17_x86_64 manylinux2010_x86_64 manylinux_2_12_x86_64)
python3 -m pip download -q --disable-pip-version-check --no-deps --only-binary=:all: \
  "${platforms[@]/#/--platform=}" -d "$wheels" \
  nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88 \
  nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85
for wheel in "$wheels"/*.whl; do python3 -m zipfile -e "$wheel" "$wheels/unpacked"; done
mkdir -p "$(dirname "$dest")"
rm -rf "$dest"
mv "$wheels/unpacked/nvidia/cu13" "$dest"
chmod +x "$dest"/bin/* "$dest"/nvvm/bin/* # a zip file keeps no execute bits
[ -e "$dest/lib64" ] || ln -s lib "$dest/lib64"
"$dest/bin/nvcc" --version | tail -1
