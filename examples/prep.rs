#![allow(missing_docs)]
use std::io::Read;
fn main() {
    let mut s = String::new();
    std::io::stdin().read_to_string(&mut s).unwrap();
    for l in s.lines() {
        let p = rumik::speech::prepare(l, &Default::default());
        let t: Vec<_> = p.chunks.iter().map(|c| c.text.clone()).collect();
        let r: Vec<_> = p.chunks.iter().flat_map(|c| c.rewrites.iter().map(|r| r.rule)).collect();
        println!("{l}\t{}\t{}", t.join(" || "), r.join(","));
    }
}
