//! Which language a text is in.

use whatlang::Lang;

/// Two-letter codes of the languages that can be told.
const CODES: [(&str, Lang); 69] = [
    ("af", Lang::Afr),
    ("ak", Lang::Aka),
    ("am", Lang::Amh),
    ("ar", Lang::Ara),
    ("az", Lang::Aze),
    ("be", Lang::Bel),
    ("bg", Lang::Bul),
    ("bn", Lang::Ben),
    ("ca", Lang::Cat),
    ("cs", Lang::Ces),
    ("da", Lang::Dan),
    ("de", Lang::Deu),
    ("el", Lang::Ell),
    ("en", Lang::Eng),
    ("eo", Lang::Epo),
    ("es", Lang::Spa),
    ("et", Lang::Est),
    ("fa", Lang::Pes),
    ("fi", Lang::Fin),
    ("fr", Lang::Fra),
    ("gu", Lang::Guj),
    ("he", Lang::Heb),
    ("hi", Lang::Hin),
    ("hr", Lang::Hrv),
    ("hu", Lang::Hun),
    ("hy", Lang::Hye),
    ("id", Lang::Ind),
    ("it", Lang::Ita),
    ("ja", Lang::Jpn),
    ("jv", Lang::Jav),
    ("ka", Lang::Kat),
    ("km", Lang::Khm),
    ("kn", Lang::Kan),
    ("ko", Lang::Kor),
    ("la", Lang::Lat),
    ("lt", Lang::Lit),
    ("lv", Lang::Lav),
    ("mk", Lang::Mkd),
    ("ml", Lang::Mal),
    ("mr", Lang::Mar),
    ("my", Lang::Mya),
    ("nb", Lang::Nob),
    ("ne", Lang::Nep),
    ("nl", Lang::Nld),
    ("no", Lang::Nob),
    ("or", Lang::Ori),
    ("pa", Lang::Pan),
    ("pl", Lang::Pol),
    ("pt", Lang::Por),
    ("ro", Lang::Ron),
    ("ru", Lang::Rus),
    ("si", Lang::Sin),
    ("sk", Lang::Slk),
    ("sl", Lang::Slv),
    ("sn", Lang::Sna),
    ("sr", Lang::Srp),
    ("sv", Lang::Swe),
    ("ta", Lang::Tam),
    ("te", Lang::Tel),
    ("th", Lang::Tha),
    ("tk", Lang::Tuk),
    ("tl", Lang::Tgl),
    ("tr", Lang::Tur),
    ("uk", Lang::Ukr),
    ("ur", Lang::Urd),
    ("uz", Lang::Uzb),
    ("vi", Lang::Vie),
    ("yi", Lang::Yid),
    ("zh", Lang::Cmn),
];
/// Letters that are looked at; more tell no more.
const MOST: usize = 600;

/// A language by its code (`en`, `en-GB`, `eng`) or its name in English or its own words; `None` where
/// it cannot be told from others.
pub(super) fn language(name: &str) -> Option<Lang> {
    let name = name.trim().to_lowercase();
    let code = name.split(['-', '_']).next().unwrap_or_default();
    let by_code = || CODES.iter().find(|(known, _)| *known == code).map(|(_, language)| *language);
    let by_name = || {
        let names = |one: &&Lang| {
            one.eng_name().to_lowercase() == name || one.name().to_lowercase() == name
        };
        Lang::all().iter().find(names).copied()
    };
    let others = || match name.as_str() {
        "chinese" => Some(Lang::Cmn),
        "norwegian" => Some(Lang::Nob),
        _ => None,
    };
    by_code().or_else(|| Lang::from_code(code)).or_else(by_name).or_else(others)
}

/// The languages of queries and documents: one name for both, or two with `->`, `>`, `/` or `,` between.
pub(super) fn languages(name: &str) -> [Option<Lang>; 2] {
    match name.split_once("->").or_else(|| name.split_once(['>', '/', ','])) {
        Some((query, document)) => [language(query), language(document)],
        None => [language(name); 2],
    }
}

/// The language of a text and how sure that is, or `None` for a text of too few letters.
pub(super) fn told(text: &str, letters: usize) -> Option<(Lang, f64)> {
    let end = text.char_indices().nth(MOST).map_or(text.len(), |(end, _)| end);
    let text = &text[..end];
    if text.chars().filter(|c| c.is_alphabetic()).count() < letters {
        return None;
    }
    whatlang::detect(text).map(|told| (told.lang(), told.confidence()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn languages_have_codes_and_names() {
        for name in ["en", "EN-gb", "eng", "English", " english "] {
            assert_eq!(language(name), Some(Lang::Eng), "{name}");
        }
        assert_eq!((language("Deutsch"), language("chinese")), (Some(Lang::Deu), Some(Lang::Cmn)));
        assert_eq!(language("klingon"), None);
        assert_eq!(languages("en->de"), [Some(Lang::Eng), Some(Lang::Deu)]);
        assert_eq!(languages("fr"), [Some(Lang::Fra); 2]);
        assert!(CODES.is_sorted_by_key(|(code, _)| code));
    }

    #[test]
    fn short_texts_are_not_told() {
        assert_eq!(told("short", 30), None);
        let text =
            "The river floods the lower streets of the town every spring, and nobody is surprised.";
        assert_eq!(told(text, 30).unwrap().0, Lang::Eng);
        let text = "Der Fluss überschwemmt jedes Frühjahr die unteren Straßen der Stadt, und niemand wundert sich.";
        assert_eq!(told(&text.repeat(50), 30).unwrap().0, Lang::Deu);
    }
}
