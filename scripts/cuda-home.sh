#!/bin/bash
# Puts together a CUDA 13.0 toolkit that compiles this project's kernels, from NVIDIA's Python wheels: no GPU, driver or
# system toolkit needed (about 104 MB to fetch, 270 MB unpacked).
#   scripts/cuda-home.sh [--candle] [DEST]      default target/cuda-home
# --candle adds what the feature candle-cuda links with: cuBLAS, cuRAND, NVRTC and a stand-in for the driver's libcuda
# (about 680 MB to fetch in all).
# Then: CUDA_HOME=DEST cargo build --release --features cuda
# Needs python3 with pip, and for --candle gcc. 13.0 on purpose: PTX of a newer toolkit does not load on a driver of the
# 580 series.
set -euo pipefail
candle=
if [ "${1:-}" = --candle ]; then candle=1; shift; fi
dest=${1:-target/cuda-home}
packages=(nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-cuda-runtime==13.0.96
  nvidia-cuda-cccl==13.0.85)
[ -z "$candle" ] || packages+=(nvidia-cublas==13.1.0.3 nvidia-curand==10.4.0.35 nvidia-cuda-nvrtc==13.0.88)
wheels=$(mktemp -d)
trap 'rm -rf "$wheels"' EXIT
platforms=(manylinux_2_27_x86_64 manylinux2014_x86_64 manylinux_2_17_x86_64 manylinux2010_x86_64 manylinux_2_12_x86_64)
python3 -m pip download -q --disable-pip-version-check --no-deps --only-binary=:all: \
  "${platforms[@]/#/--platform=}" -d "$wheels" "${packages[@]}"
for wheel in "$wheels"/*.whl; do python3 -m zipfile -e "$wheel" "$wheels/unpacked"; done
mkdir -p "$(dirname "$dest")"
rm -rf "$dest"
mv "$wheels/unpacked/nvidia/cu13" "$dest"
chmod +x "$dest"/bin/* "$dest"/nvvm/bin/* # a zip file keeps no execute bits
[ -e "$dest/lib64" ] || ln -s lib "$dest/lib64"
if [ -n "$candle" ]; then
  # The linker looks for names without a version.
  for library in "$dest"/lib/lib*.so.*; do
    name=$(basename "$library")
    case $name in *.alt.*) continue ;; esac
    ln -sf "$name" "$dest/lib/${name%%.so*}.so"
  done
  # Every function that cuda.h names, under the driver's soname; only the linker ever reads it.
  mkdir -p "$dest/lib/stubs"
  grep -oE '\bcu[A-Z][A-Za-z0-9_]*\b' "$dest/include/cuda.h" | sort -u | awk '{ print "int " $1 "(void) { return 34; }" }' \
    | gcc -shared -fPIC -w -x c -Wl,-soname,libcuda.so.1 -o "$dest/lib/stubs/libcuda.so" -
fi
"$dest/bin/nvcc" --version | tail -1
