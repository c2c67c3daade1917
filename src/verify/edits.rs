//! How much must be changed in one sequence to make another: error rates of characters, words and codes.

/// Levenshtein distance: the fewest insertions, deletions and substitutions that turn `a` into `b`.
///
/// Over the length of what was meant it is an error rate. Time `a.len() * b.len()`, memory `b.len()`.
pub fn edit_distance<T: PartialEq>(a: &[T], b: &[T]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect(); // distances of the first i of `a` to every prefix of `b`
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_the_fewest_changes() {
        let distance = |a: &str, b: &str| edit_distance(a.as_bytes(), b.as_bytes());
        let cases =
            [("kitten", "sitting", 3), ("", "abc", 3), ("abc", "", 3), ("flaw", "lawn", 2), ("same", "same", 0)];
        for (a, b, expected) in cases {
            assert_eq!((distance(a, b), distance(b, a)), (expected, expected), "{a} {b}");
        }
    }
}
