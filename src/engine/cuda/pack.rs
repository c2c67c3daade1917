//! Weights in the order the tensor cores take them: once at load, on the CPU. The file keeps its own order.
//!
//! A tile is 16 rows by one group of 128 columns. `mma.m16n8k32` wants of its A operand, in lane `4 g + t` and word `j`, the
//! four columns `16 (j / 2) + 4 t ..` of row `g + 8 (j % 2)`; an int4 tile pairs two steps of 32 columns in the nibbles of
//! a byte, so that one 16-byte load feeds two steps. Then follow the scales and minima of the 16 rows.

use rayon::prelude::*;

use crate::format::layout::GROUP;
use crate::format::{Int4Matrix, Int8Matrix};

/// Rows of a tile.
pub const ROWS: usize = 16;
/// Bytes of an int4 tile: codes, then (scale, min) of every row in f16.
pub const INT4_TILE: usize = 1088;
/// Bytes of an int8 tile.
pub const INT8_TILE: usize = 2048;

/// A row of an int4 matrix.
#[derive(Clone, Copy)]
pub struct Row<'a> {
    /// The matrix.
    pub matrix: &'a Int4Matrix,
    /// Its row.
    pub row: usize,
}

/// Place of column `k` (below 32) of row `row` within a step of an A operand.
fn place(row: usize, k: usize) -> usize {
    let (g, t, j) = (row % 8, k % 16 / 4, row / 8 + 2 * (k / 16));
    (g * 4 + t) * 16 + j * 4 + k % 4
}

fn pack_int4_row(row: usize, from: Row<'_>, group: usize, tile: &mut [u8]) {
    let Row { matrix, row: n } = from;
    let at = n * matrix.k / 2 + group * GROUP / 2;
    let codes = &matrix.codes[at..at + GROUP / 2];
    let code = |k: usize| codes[k / 2] >> (4 * (k % 2)) & 15;
    for pair in 0..2 {
        for k in 0..32 {
            tile[pair * 512 + place(row, k)] = code(pair * 64 + k) | code(pair * 64 + 32 + k) << 4;
        }
    }
    let scale_at = n * matrix.k / GROUP + group;
    let to = 1024 + (row % 8) * 8 + (row / 8) * 4;
    tile[to..to + 2].copy_from_slice(&matrix.scale[scale_at].to_le_bytes());
    tile[to + 2..to + 4].copy_from_slice(&matrix.min[scale_at].to_le_bytes());
}

/// Tiles of rows that share their columns: `[rows / 16][groups]`.
///
/// `rows(i)` names row `i` of the stacked matrix; all have the same number of columns, `count` is a multiple of 16.
pub fn int4_stack<'a>(count: usize, groups: usize, rows: impl Fn(usize) -> Row<'a> + Sync) -> Vec<u8> {
    let mut tiles = vec![0; count / ROWS * groups * INT4_TILE];
    tiles.par_chunks_exact_mut(groups * INT4_TILE).enumerate().for_each(|(tile, out)| {
        for row in 0..ROWS {
            let from = rows(tile * ROWS + row);
            for (group, out) in out.chunks_exact_mut(INT4_TILE).enumerate() {
                pack_int4_row(row, from, group, out);
            }
        }
    });
    tiles
}

/// Tiles of matrices side by side: `[rows / 16][groups of the first, groups of the second]`.
pub fn int4_beside(first: &Int4Matrix, second: &Int4Matrix) -> Vec<u8> {
    let (a, b) = (first.k / GROUP, second.k / GROUP);
    let mut tiles = vec![0; first.n / ROWS * (a + b) * INT4_TILE];
    tiles.par_chunks_exact_mut((a + b) * INT4_TILE).enumerate().for_each(|(tile, out)| {
        for row in 0..ROWS {
            let n = tile * ROWS + row;
            for (group, out) in out.chunks_exact_mut(INT4_TILE).enumerate() {
                let (matrix, group) = if group < a { (first, group) } else { (second, group - a) };
                pack_int4_row(row, Row { matrix, row: n }, group, out);
            }
        }
    });
    tiles
}

/// Rows of a matrix in order, in whole tiles; -1 stands for a row of zeros.
pub fn in_order(rows: usize) -> Vec<i32> {
    (0..rows.next_multiple_of(ROWS)).map(|row| if row < rows { row as i32 } else { -1 }).collect()
}

/// Tiles of an int8 matrix, `[rows / 16][groups]`: row `i` is `rows[i]` of the matrix, or zeros for -1.
pub fn int8(matrix: &Int8Matrix, rows: &[i32]) -> Vec<u8> {
    let groups = matrix.k / GROUP;
    let mut tiles = vec![0; rows.len() / ROWS * groups * INT8_TILE];
    tiles.par_chunks_exact_mut(groups * INT8_TILE).zip(rows.par_chunks_exact(ROWS)).for_each(|(out, rows)| {
        for (row, &from) in rows.iter().enumerate() {
            let Ok(from) = usize::try_from(from) else { continue };
            let codes = &matrix.codes[from * matrix.k..][..matrix.k];
            for (k, code) in codes.iter().enumerate() {
                out[k / GROUP * INT8_TILE + k % GROUP / 32 * 512 + place(row, k % 32)] = *code;
            }
        }
    });
    tiles
}

#[cfg(test)]
mod tests {
    use half::f16;

    use super::*;

    fn matrix(n: usize, k: usize, salt: usize) -> Int4Matrix {
        let codes: Vec<u8> = (0..n * k / 2).map(|i| (((i + salt) * 2_654_435_761) >> 7) as u8).collect();
        let values = |sign: f32| (0..n * k / GROUP).map(|i| f16::from_f32(sign * (i + salt) as f32)).collect();
        Int4Matrix { n, k, codes: codes.into(), scale: values(1.0), min: values(-1.0) }
    }

    /// Reads a code back the way the kernel does: lane, word, byte, nibble.
    fn read(tile: &[u8], row: usize, k: usize) -> u8 {
        let (step, within) = (k / 32, k % 32);
        let (lane, word, byte) = (row % 8 * 4 + within % 16 / 4, row / 8 + 2 * (within / 16), within % 4);
        tile[step / 2 * 512 + lane * 16 + word * 4 + byte] >> (4 * (step % 2)) & 15
    }

    #[test]
    fn every_code_and_scale_has_its_place() {
        let (a, b) = (matrix(32, 256, 1), matrix(32, 128, 5));
        let tiles = int4_beside(&a, &b);
        for n in 0..32 {
            for (first, matrix) in [(0, &a), (2, &b)] {
                for k in 0..matrix.k {
                    let tile = &tiles[((n / 16) * 3 + first + k / GROUP) * INT4_TILE..][..INT4_TILE];
                    let expected = matrix.codes[(n * matrix.k + k) / 2] >> (4 * (k % 2)) & 15;
                    assert_eq!(read(tile, n % 16, k % GROUP), expected, "row {n} column {k}");
                    let pair = &tile[1024 + n % 8 * 8 + n % 16 / 8 * 4..][..4];
                    let at = n * matrix.k / GROUP + k / GROUP;
                    assert_eq!(pair[..2], matrix.scale[at].to_le_bytes());
                    assert_eq!(pair[2..], matrix.min[at].to_le_bytes());
                }
            }
        }
    }

    #[test]
    fn stacked_rows_may_come_from_anywhere() {
        let (a, b) = (matrix(8, 128, 1), matrix(8, 128, 9));
        let tiles = int4_stack(16, 1, |i| Row { matrix: if i < 8 { &a } else { &b }, row: i % 8 });
        assert_eq!(read(&tiles, 3, 77), a.codes[(3 * 128 + 77) / 2] >> 4);
        assert_eq!(read(&tiles, 11, 78), b.codes[(3 * 128 + 78) / 2] & 15);
    }

    #[test]
    fn an_int8_row_past_the_last_tile_is_zero() {
        let codes: Vec<u8> = (0..17 * 128).map(|i| (i % 251) as u8 + 1).collect();
        let matrix = Int8Matrix { n: 17, k: 128, codes: codes.clone().into(), scale: vec![f16::ONE; 17] };
        let tiles = int8(&matrix, &in_order(17));
        assert_eq!(tiles.len(), 2 * INT8_TILE);
        assert_eq!(tiles[INT8_TILE + 3 * 512 + place(0, 5)], codes[16 * 128 + 101]);
        assert_eq!(tiles[INT8_TILE..].iter().filter(|&&code| code != 0).count(), 128);
    }

    #[test]
    fn int8_rows_come_in_any_order() {
        let codes: Vec<u8> = (0..17 * 128).map(|i| (i / 128) as u8 + 1).collect();
        let matrix = Int8Matrix { n: 17, k: 128, codes: codes.into(), scale: vec![f16::ONE; 17] };
        let rows: Vec<i32> = [16, 3].into_iter().chain([-1; 14]).collect();
        let tiles = int8(&matrix, &rows);
        let row = |row: usize| (0..128).map(|k| tiles[k / 32 * 512 + place(row, k % 32)]).collect::<Vec<u8>>();
        assert_eq!((row(0), row(1), row(2)), (vec![17; 128], vec![4; 128], vec![0; 128]));
    }
}
