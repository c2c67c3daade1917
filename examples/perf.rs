#![allow(missing_docs)]
fn cpu() -> f64 {
    let s = std::fs::read_to_string("/proc/self/schedstat").unwrap();
    s.split(' ').next().unwrap().parse::<f64>().unwrap() / 1e6
}
fn main() {
    let n = 1 << 20;
    let rep = |s: &str| {
        let mut o = String::with_capacity(n + 64);
        while o.len() < n {
            o.push_str(s)
        }
        o
    };
    rumik::speech::prepare("12 a", &Default::default());
    let cases: Vec<(&str, String)> = vec![
        ("digits 10k", "7".repeat(10_000)),
        ("digits", rep("7")),
        ("digit spaces", rep("7 ")),
        ("commas", rep("1,")),
        ("groups", rep("12,34,567,")),
        ("dots", rep("1.")),
        ("hyphen", rep("1-1-")),
        ("slash", rep("1/")),
        ("colon", rep("1:")),
        ("a:", rep("a:")),
        ("a.", rep("a.")),
        ("at", rep("a@b.")),
        ("(", rep("(")),
        ("lt", rep("<")),
        ("lt a", rep("<a")),
        ("amp", rep("&")),
        ("bar", rep("|")),
        ("bars", rep("|a")),
        ("star", rep("*")),
        ("bracket", rep("[")),
        ("bracket2", rep("[a](")),
        ("zwsp", rep("\u{200b}a")),
        ("marks", rep("\u{301}")),
        ("nuktas", rep("\u{93c}\u{94d}")),
        ("newline", rep("\n")),
        ("spaces", rep("  ")),
        ("emoji", rep("😀")),
        ("plus", rep("+1")),
        ("rs", rep("Rs. ")),
        ("rupee", rep("₹1-₹1-")),
        ("caps", rep("OTP ")),
        ("hi", rep("नमस्ते दुनिया, आज 25 तारीख है। ")),
        ("en", rep("The total is 1,250 rupees on 15/08/1947 at 7:21. ")),
        ("bt", rep("`")),
        ("und", rep("_a")),
        ("hash", rep("#")),
        ("html", rep("<b>x</b>")),
        ("ent", rep("&amp;")),
        ("q", rep("???!!!")),
        ("long word", rep("क्षि")),
        ("latin", rep("a")),
        ("quotes", rep("\"a")),
        ("4digits", rep("1234-")),
        ("1947", rep("1947 से ")),
        ("code", rep("no ")),
        ("dr", rep("Dr.")),
        ("roman", rep("IV ")),
        ("desc", rep("<description=")),
        ("pipe", rep("<|a")),
        ("%", rep("%")),
        ("1%", rep("1%-")),
    ];
    for (name, t) in cases {
        let s = cpu();
        let p = rumik::speech::prepare(&t, &Default::default());
        let e = cpu() - s;
        println!("{name:12} {:8.1} ms {} chunks", e, p.chunks.len());
    }
}
