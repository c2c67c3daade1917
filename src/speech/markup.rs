//! Residue of Markdown and HTML: what a chat model's answer or a copied page leaves in a text.

use super::TAGS;
use super::trace::{Traced, Writer};

/// Longest HTML tag, entity or link target recognised, in bytes: keeps the scan linear.
const LONGEST: usize = 2000;

/// Removes markup and keeps what it marked: link texts, emphasis, list items, headings.
pub fn strip(input: Traced) -> Traced {
    let Traced { text, edits } = input;
    let mut writer = Writer::new(&text, edits);
    let mut at = 0;
    while at < text.len() {
        let line_start = at == 0 || text.as_bytes()[at - 1] == b'\n';
        if line_start && let Some(length) = line_prefix(&text[at..]) {
            writer.keep_to(at);
            writer.replace_to(at + length, "", "markdown", false);
            at += length;
            continue;
        }
        match inline(&text, at) {
            Some((length, to, rule)) => {
                writer.keep_to(at);
                writer.replace_to(at + length, to, rule, false);
                at += length;
            }
            None => at += text[at..].chars().next().map_or(1, char::len_utf8),
        }
    }
    writer.finish()
}

/// Length of the mark a line begins with: heading, quote, bullet, table rule, code fence.
fn line_prefix(line: &str) -> Option<usize> {
    let indent = line.len() - line.trim_start_matches(' ').len();
    let body = &line[indent..];
    let hashes = body.len() - body.trim_start_matches('#').len();
    if (1..=6).contains(&hashes) && body[hashes..].starts_with(' ') {
        return Some(indent + hashes + 1);
    }
    for bullet in ["- ", "* ", "+ ", "> ", "• "] {
        if let Some(rest) = body.strip_prefix(bullet) {
            let box_length = ["[ ] ", "[x] ", "[X] "].iter().find(|b| rest.starts_with(**b)).map_or(0, |b| b.len());
            return Some(indent + bullet.len() + box_length);
        }
    }
    if body.starts_with("```") || body.starts_with("~~~") {
        return Some(indent + body.find('\n').unwrap_or(body.len()));
    }
    let end = body.find('\n').unwrap_or(body.len());
    let rule = body[..end].trim();
    let is_rule = rule.len() >= 3 && rule.chars().all(|c| matches!(c, '-' | '=' | '_' | '*' | '|' | ':' | ' '));
    is_rule.then_some(indent + end)
}

/// The mark at a place, what replaces it, and the rule.
fn inline(text: &str, at: usize) -> Option<(usize, &str, &'static str)> {
    let rest = &text[at..];
    match rest.as_bytes()[0] {
        b'*' | b'`' => emphasis(text, at).map(|length| (length, "", "markdown")),
        b'_' => (rest.starts_with("__")).then_some((2, "", "markdown")).or_else(|| underscore(text, at)),
        b'~' if rest.starts_with("~~") => Some((2, "", "markdown")),
        b'!' if rest.starts_with("![") => link(&rest[1..]).map(|(length, label)| (length + 1, label, "markdown")),
        b'[' => link(rest).map(|(length, label)| (length, label, "markdown")),
        b'<' => html(rest).map(|(length, to)| (length, to, "html")),
        b'&' => entity(rest).map(|(length, to)| (length, to, "html")),
        b'|' => table_bar(text, at),
        _ => None,
    }
}

/// Asterisks and backticks that touch a word on one side; a lone `*` between spaces or digits is a sign of its own.
fn emphasis(text: &str, at: usize) -> Option<usize> {
    let mark = text.as_bytes()[at];
    let length = text[at..].bytes().take(3).take_while(|b| *b == mark).count();
    let before = text[..at].chars().next_back();
    let after = text[at + length..].chars().next();
    let digits = |c: Option<char>| c.is_some_and(|c| c.is_ascii_digit());
    let space = |c: Option<char>| c.is_none_or(char::is_whitespace);
    let times = mark == b'*' && length == 1 && (digits(before) && digits(after) || space(before) && space(after));
    (!times).then_some(length)
}

/// A single underscore at the edge of a word; inside a name (`a_b`) it is kept.
fn underscore(text: &str, at: usize) -> Option<(usize, &str, &'static str)> {
    let inner = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
    let edges = (inner(text[..at].chars().next_back()), inner(text[at + 1..].chars().next()));
    matches!(edges, (false, true) | (true, false)).then_some((1, "", "markdown"))
}

/// `[label](target)`: its length and label.
fn link(text: &str) -> Option<(usize, &str)> {
    let window = prefix(text);
    let close = window.find(']')?;
    let label = &window[1..close];
    let target = window[close + 1..].strip_prefix('(')?;
    let end = target.find(')')?;
    (!label.contains('[') && !target[..end].contains('\n')).then_some((close + 1 + 1 + end + 1, label))
}

/// An HTML tag or comment: its length, and the line break or space that stands for it.
fn html(text: &str) -> Option<(usize, &'static str)> {
    if TAGS.iter().any(|tag| text.starts_with(tag)) {
        return None;
    }
    let window = prefix(text);
    if window.starts_with("<!--") {
        return window.find("-->").map(|end| (end + 3, " "));
    }
    let name = window[1..].strip_prefix('/').unwrap_or(&window[1..]);
    if !name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '!') {
        return None;
    }
    let end = window[1..].find(['<', '>', '\n'])? + 1;
    if window.as_bytes()[end] != b'>' {
        return None;
    }
    let word = name.find(|c: char| !c.is_ascii_alphanumeric()).map_or(name, |end| &name[..end]);
    const BLOCKS: [&str; 16] =
        ["br", "p", "div", "li", "ul", "ol", "tr", "table", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "section"];
    let inline = ["b", "i", "em", "strong", "u", "a", "span", "code", "mark", "s", "sub", "sup", "small", "font"];
    let known = |list: &[&str]| list.iter().any(|known| known.eq_ignore_ascii_case(word));
    Some((
        end + 1,
        if known(&BLOCKS) {
            "\n"
        } else if known(&inline) {
            ""
        } else {
            " "
        },
    ))
}

/// A character reference: its length and the character.
fn entity(text: &str) -> Option<(usize, &'static str)> {
    const NAMED: [(&str, &str); 16] = [
        ("&amp;", "&"),
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&quot;", "\""),
        ("&apos;", "'"),
        ("&#39;", "'"),
        ("&#x27;", "'"),
        ("&nbsp;", " "),
        ("&#160;", " "),
        ("&ndash;", "–"),
        ("&mdash;", "—"),
        ("&hellip;", "…"),
        ("&rsquo;", "’"),
        ("&lsquo;", "‘"),
        ("&rupee;", "₹"),
        ("&#8377;", "₹"),
    ];
    NAMED.iter().find(|(name, _)| text.starts_with(name)).map(|(name, c)| (name.len(), *c))
}

/// The bars of a table row: a line that begins and ends with one.
fn table_bar(text: &str, at: usize) -> Option<(usize, &str, &'static str)> {
    let start = floor(text, at.saturating_sub(LONGEST));
    let line_start = text[start..at].rfind('\n').map_or(start, |i| start + i + 1);
    let window = prefix(&text[at..]);
    let line_end = at + window.find('\n').unwrap_or(window.len());
    let line = text[line_start..line_end].trim();
    let row = line.len() > 2 && line.starts_with('|') && line.ends_with('|');
    let edge = text[line_start..at].trim().is_empty() || text[at + 1..line_end].trim().is_empty();
    row.then_some((1, if edge { "" } else { "," }, "markdown"))
}

fn prefix(text: &str) -> &str {
    &text[..floor(text, LONGEST.min(text.len()))]
}

fn floor(text: &str, mut at: usize) -> usize {
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

#[cfg(test)]
mod tests {
    use super::super::clean::clean;

    fn stripped(text: &str) -> String {
        clean(text, true).text
    }

    #[test]
    fn markdown_leaves_its_words() {
        assert_eq!(stripped("# शीर्षक\n\n**बहुत** *अच्छा* `code` है"), "शीर्षक\n\nबहुत अच्छा code है");
        assert_eq!(stripped("- एक\n- दो\n1. तीन"), "एक\nदो\n1. तीन");
        assert_eq!(stripped("see [the page](https://x.y/z) now"), "see the page now");
        assert_eq!(stripped("![logo](a.png) hi"), "logo hi");
        assert_eq!(stripped("```rust\nlet x;\n```\nok"), "let x;\n\nok");
        assert_eq!(stripped("2 * 3 and 2*3"), "2 * 3 and 2*3");
        assert_eq!(stripped("_so_ my_file"), "so my_file");
        assert_eq!(stripped("| a | b |\n|---|---|\n| c | d |"), "a, b\n\nc, d");
    }

    #[test]
    fn html_leaves_its_words() {
        assert_eq!(stripped("<p>एक</p><p>दो<br/>तीन</p>"), "एक\n\nदो\nतीन");
        assert_eq!(stripped("a <b>bold</b> &amp; b"), "a bold & b");
        assert_eq!(stripped("<foo>hi <!-- x --> there"), "hi there");
        assert_eq!(stripped("a < b > c <laugh hi"), "a < b > c <laugh hi");
        assert_eq!(stripped("<laugh> ha"), "<laugh> ha");
    }

    #[test]
    fn markup_stays_when_asked() {
        assert_eq!(clean("**a** <b>c</b>", false).text, "**a** <b>c</b>");
    }
}
