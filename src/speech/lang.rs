//! The languages of the reader, how one is recognised, and the words that are not numbers.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};

/// A language the reader speaks; romanised Hindi counts as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "each variant is the language it names")]
pub enum Lang {
    Hindi,
    English,
    RomanHindi,
    Bengali,
    Tamil,
    Telugu,
    Kannada,
    Marathi,
    Gujarati,
    Malayalam,
    Punjabi,
}

/// A script the reader tells apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Script {
    /// Latin, with its extensions.
    Latin,
    /// Hindi and Marathi.
    Devanagari,
    /// Another script with a reader of its own, by its language.
    Of(Lang),
    /// Anything else.
    Other,
}

impl Lang {
    /// Every language.
    pub const ALL: [Lang; 11] = [
        Lang::Hindi,
        Lang::English,
        Lang::RomanHindi,
        Lang::Bengali,
        Lang::Tamil,
        Lang::Telugu,
        Lang::Kannada,
        Lang::Marathi,
        Lang::Gujarati,
        Lang::Malayalam,
        Lang::Punjabi,
    ];

    /// The BCP 47 code: `hi`, `en`, `hi-Latn`, `bn`, …
    pub fn code(self) -> &'static str {
        ["hi", "en", "hi-Latn", "bn", "ta", "te", "kn", "mr", "gu", "ml", "pa"][self as usize]
    }

    /// Whether the language is written in Latin letters.
    pub fn is_latin(self) -> bool {
        matches!(self, Lang::English | Lang::RomanHindi)
    }

    /// Hindi in either script: the grammar of dates, times and money is the same.
    pub fn is_hindi(self) -> bool {
        matches!(self, Lang::Hindi | Lang::RomanHindi)
    }

    /// A fixed word of the language.
    pub fn say(self, word: Say) -> &'static str {
        WORDS[word as usize][self as usize]
    }

    /// The name of a month, 1 to 12; empty otherwise.
    pub fn month(self, month: usize) -> &'static str {
        MONTHS.get(month.wrapping_sub(1)).map_or("", |names| names[self as usize])
    }
}

impl fmt::Display for Lang {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(self.code())
    }
}

impl FromStr for Lang {
    type Err = Error;

    /// Accepts a code in any ASCII case, `en-IN` too.
    fn from_str(text: &str) -> Result<Lang> {
        let wanted = if text.eq_ignore_ascii_case("en-in") { "en" } else { text };
        Lang::ALL.into_iter().find(|lang| lang.code().eq_ignore_ascii_case(wanted)).ok_or_else(|| {
            let accepted = Lang::ALL.map(Lang::code).join(", ");
            Error::input("language", format!("unknown {text:?}; accepted: {accepted}"))
        })
    }
}

impl Script {
    /// The script of a letter or mark; `None` for digits, punctuation and marks that every script shares.
    pub fn of(c: char) -> Option<Script> {
        let code = c as u32;
        match code {
            0x41..=0x5A | 0x61..=0x7A => Some(Script::Latin),
            0..0x80 | 0x300..=0x36F | 0x200C | 0x200D => None,
            0x900..0xD80 => indic_script(c, code),
            0x80..=0x24F | 0x1E00..=0x1EFF => c.is_alphabetic().then_some(Script::Latin),
            0xA8E0..=0xA8FF => Some(Script::Devanagari),
            _ => c.is_alphabetic().then_some(Script::Other),
        }
    }
}

/// The script of a character of the nine Indic blocks, which are laid out alike: dandas and digits at 0x64 to 0x6F, signs that
/// are not letters only behind them.
fn indic_script(c: char, code: u32) -> Option<Script> {
    let offset = code & 0x7F;
    if matches!(offset, 0x64..=0x6F) || offset >= 0x70 && !c.is_alphabetic() {
        return None;
    }
    Some(match code {
        0x900..0x980 => Script::Devanagari,
        0x980..0xA00 => Script::Of(Lang::Bengali),
        0xA00..0xA80 => Script::Of(Lang::Punjabi),
        0xA80..0xB00 => Script::Of(Lang::Gujarati),
        0xB80..0xC00 => Script::Of(Lang::Tamil),
        0xC00..0xC80 => Script::Of(Lang::Telugu),
        0xC80..0xD00 => Script::Of(Lang::Kannada),
        0xD00..0xD80 => Script::Of(Lang::Malayalam),
        _ => Script::Other,
    })
}

/// Whether a character belongs to the letter before it: vowel signs, viramas, nuktas, joiners, accents.
///
/// Indic vowel signs are alphabetic to Unicode, viramas and nuktas are not; the blocks are laid out alike.
pub fn is_mark(c: char) -> bool {
    let code = c as u32;
    let in_block = |signs: &[u32]| (0x900..0xE00).contains(&code) && signs.contains(&(code & 0x7F));
    // Nukta, virama, stress marks, and the nasalisation signs at the head of each block.
    in_block(&[0x3C, 0x4D, 0x51, 0x52, 0x00, 0x01, 0x02, 0x03])
        || matches!(code, 0x300..=0x36F | 0x200C | 0x200D | 0x1AB0..=0x1AFF | 0xA70 | 0xA71 | 0xD3B | 0xD3C)
}

/// Whether a character says something by itself: a letter, a digit, a numeric sign.
pub fn is_spoken(c: char) -> bool {
    Script::of(c).is_some()
        || digit_value(c).is_some()
        || !c.is_ascii() && !(0x900..0xE00).contains(&(c as u32)) && c.is_numeric()
}

/// The decimal value of a digit of ASCII, full width, Arabic or an Indic script.
pub fn digit_value(c: char) -> Option<u8> {
    let code = c as u32;
    let zero = match code {
        0x30..=0x39 => 0x30,
        // All Indic blocks have their digits at 0x66.
        0x900..0xE00 if matches!(code & 0x7F, 0x66..=0x6F) => (code & !0x7F) + 0x66,
        0x660..=0x669 => 0x660,
        0x6F0..=0x6F9 => 0x6F0,
        0xFF10..=0xFF19 => 0xFF10,
        _ => return None,
    };
    Some((code - zero) as u8)
}

macro_rules! words {
    ($($name:ident => [$($word:literal),+ $(,)?]),+ $(,)?) => {
        /// A fixed word that exists in every language of the reader.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(missing_docs, reason = "each variant is the word it stands for")]
        pub enum Say { $($name),+ }

        /// Columns in the order of [`Lang::ALL`].
        const WORDS: &[[&str; Lang::ALL.len()]] = &[$([$($word),+]),+];
    };
}

// Spoken words for signs and money. Decimal and minus words of Tamil, Gujarati, Bengali, Telugu, Kannada, Marathi, Malayalam
// and Punjabi after CLDR common/rbnf (Unicode-3.0); currencies after CLDR common/main.
words! {
    Point => ["दशमलव", "point", "dashamlav", "দশমিক", "புள்ளி", "దశాంశం", "ದಶಮಾಂಶ", "दशांश", "દશાંશ", "ദശാംശം", "ਦਸ਼ਮਲਵ"],
    Minus => ["माइनस", "minus", "minus", "মাইনাস", "மைனஸ்", "మైనస్", "ಮೈನಸ್", "उणे", "માઇનસ", "മൈനസ്", "ਮਾਈਨਸ"],
    Plus => ["प्लस", "plus", "plus", "প্লাস", "பிளஸ்", "ప్లస్", "ಪ್ಲಸ್", "प्लस", "પ્લસ", "പ്ലസ്", "ਪਲੱਸ"],
    Percent => ["प्रतिशत", "percent", "percent", "শতাংশ", "சதவீதம்", "శాతం", "ಶೇಕಡಾ", "टक्के", "ટકા", "ശതമാനം", "ਫ਼ੀਸਦੀ"],
    To => ["से", "to", "se", "থেকে", "முதல்", "నుండి", "ರಿಂದ", "ते", "થી", "മുതൽ", "ਤੋਂ"],
    Rupee => ["रुपया", "rupee", "rupaya", "টাকা", "ரூபாய்", "రూపాయి", "ರೂಪಾಯಿ", "रुपया", "રૂપિયો", "രൂപ", "ਰੁਪਇਆ"],
    Rupees => ["रुपये", "rupees", "rupaye", "টাকা", "ரூபாய்", "రూపాయలు", "ರೂಪಾಯಿ", "रुपये", "રૂપિયા", "രൂപ", "ਰੁਪਏ"],
    Paisa => ["पैसा", "paisa", "paisa", "পয়সা", "பைசா", "పైసా", "ಪೈಸೆ", "पैसा", "પૈસો", "പൈസ", "ਪੈਸਾ"],
    Paise => ["पैसे", "paise", "paise", "পয়সা", "பைசா", "పైసలు", "ಪೈಸೆ", "पैसे", "પૈસા", "പൈസ", "ਪੈਸੇ"],
    Dollar => ["डॉलर", "dollar", "dollar", "ডলার", "டாலர்", "డాలర్", "ಡಾಲರ್", "डॉलर", "ડોલર", "ഡോളർ", "ਡਾਲਰ"],
    Dollars => ["डॉलर", "dollars", "dollar", "ডলার", "டாலர்", "డాలర్లు", "ಡಾಲರ್", "डॉलर", "ડોલર", "ഡോളർ", "ਡਾਲਰ"],
    Cent => ["सेंट", "cent", "cent", "সেন্ট", "சென்ட்", "సెంట్", "ಸೆಂಟ್", "सेंट", "સેન્ટ", "സെന്റ്", "ਸੈਂਟ"],
    Cents => ["सेंट", "cents", "cent", "সেন্ট", "சென்ட்", "సెంట్లు", "ಸೆಂಟ್", "सेंट", "સેન્ટ", "സെന്റ്", "ਸੈਂਟ"],
    Pound => ["पाउंड", "pound", "pound", "পাউন্ড", "பவுண்டு", "పౌండ్", "ಪೌಂಡ್", "पाउंड", "પાઉન્ડ", "പൗണ്ട്", "ਪੌਂਡ"],
    Pounds => ["पाउंड", "pounds", "pound", "পাউন্ড", "பவுண்டு", "పౌండ్లు", "ಪೌಂಡ್", "पाउंड", "પાઉન્ડ", "പൗണ്ട്", "ਪੌਂਡ"],
    Penny => ["पेनी", "penny", "penny", "পেনি", "பென்னி", "పెన్నీ", "ಪೆನ್ನಿ", "पेनी", "પેની", "പെന്നി", "ਪੈਨੀ"],
    Pence => ["पेंस", "pence", "pence", "পেন্স", "பென்ஸ்", "పెన్స్", "ಪೆನ್ಸ್", "पेन्स", "પેન્સ", "പെൻസ്", "ਪੈਂਸ"],
    Euro => ["यूरो", "euro", "euro", "ইউরো", "யூரோ", "యూరో", "ಯೂರೋ", "युरो", "યુરો", "യൂറോ", "ਯੂਰੋ"],
    Euros => ["यूरो", "euros", "euro", "ইউরো", "யூரோ", "యూరోలు", "ಯೂರೋ", "युरो", "યુરો", "യൂറോ", "ਯੂਰੋ"],
    Yen => ["येन", "yen", "yen", "ইয়েন", "யென்", "యెన్", "ಯೆನ್", "येन", "યેન", "യെൻ", "ਯੇਨ"],
    Dirham => ["दिरहम", "dirham", "dirham", "দিরহাম", "திர்ஹாம்", "దిర్హామ్", "ದಿರ್ಹಾಮ್", "दिरहम", "દિરહામ", "ദിർഹം", "ਦਿਰਹਮ"],
    Dirhams => ["दिरहम", "dirhams", "dirham", "দিরহাম", "திர்ஹாம்", "దిర్హామ్‌లు", "ದಿರ್ಹಾಮ್", "दिरहम", "દિરહામ", "ദിർഹം", "ਦਿਰਹਮ"],
    Fils => ["फ़िल्स", "fils", "fils", "ফিলস", "ஃபில்ஸ்", "ఫిల్స్", "ಫಿಲ್ಸ್", "फिल्स", "ફિલ્સ", "ഫിൽസ്", "ਫ਼ਿਲਸ"],
    Hundred => ["सौ", "hundred", "sau", "শো", "நூறு", "వందల", "ನೂರು", "शे", "સો", "നൂറ്", "ਸੌ"],
    Thousand => ["हज़ार", "thousand", "hazaar", "হাজার", "ஆயிரம்", "వేల", "ಸಾವಿರ", "हजार", "હજાર", "ആയിരം", "ਹਜ਼ਾਰ"],
    Lakh => ["लाख", "lakh", "lakh", "লাখ", "லட்சம்", "లక్షల", "ಲಕ್ಷ", "लाख", "લાખ", "ലക്ഷം", "ਲੱਖ"],
    Crore => ["करोड़", "crore", "crore", "কোটি", "கோடி", "కోట్ల", "ಕೋಟಿ", "कोटी", "કરોડ", "കോടി", "ਕਰੋੜ"],
    Arab => ["अरब", "arab", "arab", "আরব", "ஆயிரம் கோடி", "అరబ్", "ಅರಬ್", "अब्ज", "અબજ", "അറബ്", "ਅਰਬ"],
    Million => ["मिलियन", "million", "million", "মিলিয়ন", "மில்லியன்", "మిలియన్", "ಮಿಲಿಯನ್", "मिलियन", "મિલિયન", "മില്യൺ", "ਮਿਲੀਅਨ"],
    Billion => ["बिलियन", "billion", "billion", "বিলিয়ন", "பில்லியன்", "బిలియన్", "ಬಿಲಿಯನ್", "बिलियन", "બિલિયન", "ബില്യൺ", "ਬਿਲੀਅਨ"],
    Trillion => ["ट्रिलियन", "trillion", "trillion", "ট্রিলিয়ন", "டிரில்லியன்", "ట్రిలియన్", "ಟ್ರಿಲಿಯನ್", "ट्रिलियन", "ટ્રિલિયન", "ട്രില്യൺ", "ਟ੍ਰਿਲੀਅਨ"],
    Number => ["नंबर", "number", "number", "নম্বর", "எண்", "నంబర్", "ಸಂಖ್ಯೆ", "क्रमांक", "નંબર", "നമ്പർ", "ਨੰਬਰ"],
    Equals => ["बराबर", "equals", "barabar", "সমান", "சமம்", "సమానం", "ಸಮ", "बरोबर", "બરાબર", "സമം", "ਬਰਾਬਰ"],
    Times => ["गुणा", "times", "guna", "গুণ", "பெருக்கல்", "గుణకారం", "ಗುಣಿಸು", "गुणिले", "ગુણ્યા", "ഗുണം", "ਗੁਣਾ"],
    DividedBy => ["भागा", "divided by", "bhaga", "ভাগ", "வகுத்தல்", "భాగహారం", "ಭಾಗಿಸು", "भागिले", "ભાગ્યા", "ഹരണം", "ਭਾਗ"],
    Dot => ["डॉट", "dot", "dot", "ডট", "டாட்", "డాట్", "ಡಾಟ್", "डॉट", "ડોટ", "ഡോട്ട്", "ਡਾਟ"],
    Slash => ["स्लैश", "slash", "slash", "স্ল্যাশ", "ஸ்லாஷ்", "స్లాష్", "ಸ್ಲಾಶ್", "स्लॅश", "સ્લેશ", "സ്ലാഷ്", "ਸਲੈਸ਼"],
    Dash => ["डैश", "dash", "dash", "ড্যাশ", "டேஷ்", "డాష్", "ಡ್ಯಾಶ್", "डॅश", "ડેશ", "ഡാഷ്", "ਡੈਸ਼"],
    Underscore => ["अंडरस्कोर", "underscore", "underscore", "আন্ডারস্কোর", "அண்டர்ஸ்கோர்", "అండర్‌స్కోర్", "ಅಂಡರ್‌ಸ್ಕೋರ್", "अंडरस्कोर", "અંડરસ્કોર", "അണ്ടർസ്കോർ", "ਅੰਡਰਸਕੋਰ"],
    Colon => ["कोलन", "colon", "colon", "কোলন", "கோலன்", "కోలన్", "ಕೋಲನ್", "कोलन", "કોલન", "കോളൻ", "ਕੋਲਨ"],
    AtTheRate => ["ऐट द रेट", "at the rate", "at the rate", "অ্যাট দ্য রেট", "அட் த ரேட்", "ఎట్ ది రేట్", "ಎಟ್ ದ ರೇಟ್", "ॲट द रेट", "એટ ધ રેટ", "അറ്റ് ദ റേറ്റ്", "ਐਟ ਦ ਰੇਟ"],
    Hashtag => ["हैशटैग", "hashtag", "hashtag", "হ্যাশট্যাগ", "ஹேஷ்டேக்", "హ్యాష్‌ట్యాగ్", "ಹ್ಯಾಶ್‌ಟ್ಯಾಗ್", "हॅशटॅग", "હેશટેગ", "ഹാഷ്ടാഗ്", "ਹੈਸ਼ਟੈਗ"],
    And => ["और", "and", "aur", "এবং", "மற்றும்", "మరియు", "ಮತ್ತು", "आणि", "અને", "ഒപ്പം", "ਅਤੇ"],
    Degrees => ["डिग्री", "degrees", "degree", "ডিগ্রি", "டிகிரி", "డిగ్రీలు", "ಡಿಗ್ರಿ", "अंश", "ડિગ્રી", "ഡിഗ്രി", "ਡਿਗਰੀ"],
}

/// Month names after CLDR common/main, columns in the order of [`Lang::ALL`].
const MONTHS: [[&str; Lang::ALL.len()]; 12] = [
    ["जनवरी", "January", "January", "জানুয়ারি", "ஜனவரி", "జనవరి", "ಜನವರಿ", "जानेवारी", "જાન્યુઆરી", "ജനുവരി", "ਜਨਵਰੀ"],
    ["फ़रवरी", "February", "February", "ফেব্রুয়ারি", "பிப்ரவரி", "ఫిబ్రవరి", "ಫೆಬ್ರವರಿ", "फेब्रुवारी", "ફેબ્રુઆરી", "ഫെബ്രുവരി", "ਫ਼ਰਵਰੀ"],
    ["मार्च", "March", "March", "মার্চ", "மார்ச்", "మార్చి", "ಮಾರ್ಚ್", "मार्च", "માર્ચ", "മാർച്ച്", "ਮਾਰਚ"],
    ["अप्रैल", "April", "April", "এপ্রিল", "ஏப்ரல்", "ఏప్రిల్", "ಏಪ್ರಿಲ್", "एप्रिल", "એપ્રિલ", "ഏപ്രിൽ", "ਅਪ੍ਰੈਲ"],
    ["मई", "May", "May", "মে", "மே", "మే", "ಮೇ", "मे", "મે", "മേയ്", "ਮਈ"],
    ["जून", "June", "June", "জুন", "ஜூன்", "జూన్", "ಜೂನ್", "जून", "જૂન", "ജൂൺ", "ਜੂਨ"],
    ["जुलाई", "July", "July", "জুলাই", "ஜூலை", "జులై", "ಜುಲೈ", "जुलै", "જુલાઈ", "ജൂലൈ", "ਜੁਲਾਈ"],
    ["अगस्त", "August", "August", "আগস্ট", "ஆகஸ்ட்", "ఆగస్టు", "ಆಗಸ್ಟ್", "ऑगस्ट", "ઑગસ્ટ", "ഓഗസ്റ്റ്", "ਅਗਸਤ"],
    [
        "सितंबर",
        "September",
        "September",
        "সেপ্টেম্বর",
        "செப்டம்பர்",
        "సెప్టెంబర్",
        "ಸೆಪ್ಟೆಂಬರ್",
        "सप्टेंबर",
        "સપ્ટેમ્બર",
        "സെപ്റ്റംബർ",
        "ਸਤੰਬਰ",
    ],
    ["अक्टूबर", "October", "October", "অক্টোবর", "அக்டோபர்", "అక్టోబర్", "ಅಕ್ಟೋಬರ್", "ऑक्टोबर", "ઑક્ટોબર", "ഒക്‌ടോബർ", "ਅਕਤੂਬਰ"],
    ["नवंबर", "November", "November", "নভেম্বর", "நவம்பர்", "నవంబర్", "ನವೆಂಬರ್", "नोव्हेंबर", "નવેમ્બર", "നവംബർ", "ਨਵੰਬਰ"],
    ["दिसंबर", "December", "December", "ডিসেম্বর", "டிசம்பர்", "డిసెంబర్", "ಡಿಸೆಂಬರ್", "डिसेंबर", "ડિસેમ્બર", "ഡിസംബർ", "ਦਸੰਬਰ"],
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_parse_back() {
        for lang in Lang::ALL {
            assert_eq!(lang.code().parse::<Lang>().unwrap(), lang);
        }
        assert_eq!("en-IN".parse::<Lang>().unwrap(), Lang::English);
        assert!("fr".parse::<Lang>().unwrap_err().to_string().contains("hi-Latn"));
    }

    #[test]
    fn words_of_a_language_are_in_its_script() {
        let scripts =
            [Script::Devanagari, Script::Latin, Script::Latin, Script::Of(Lang::Bengali), Script::Of(Lang::Tamil)];
        for rows in [WORDS, &MONTHS[..]] {
            for row in rows {
                for (lang, word) in Lang::ALL.into_iter().zip(row) {
                    let expected = match lang {
                        Lang::Marathi => Script::Devanagari,
                        lang => scripts.get(lang as usize).copied().unwrap_or(Script::Of(lang)),
                    };
                    assert!(!word.is_empty());
                    assert!(word.chars().filter_map(Script::of).all(|script| script == expected), "{lang}: {word}");
                }
            }
        }
    }

    #[test]
    fn digits_of_every_script_have_values() {
        let values: Vec<_> = "09०९০৯੦૯௯౯೯൯０9a".chars().map(digit_value).collect();
        let expected =
            [0, 9, 0, 9, 0, 9, 0, 9, 9, 9, 9, 9, 0, 9].map(Some).into_iter().chain([None]).collect::<Vec<_>>();
        assert_eq!(values, expected);
    }
}
