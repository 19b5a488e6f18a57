//! Languages that examples are written in, and which one a text is in.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use whatlang::{Info, Lang};

/// Letters below which no language is told.
const LEAST_LETTERS: usize = 24;
/// How sure another language has to be.
const RELIABLE: f64 = 0.9;
/// Letters that are looked at; more tell no more.
const MOST_LETTERS: usize = 1000;

/// A language of XLM-R's list (arXiv:1911.02116, table 6).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Language {
    /// ISO 639-1.
    pub code: &'static str,
    /// Name in English.
    pub name: &'static str,
    /// ISO 639-3, where it can be told from a text.
    told: Option<&'static str>,
    /// Whether there is much text of it.
    common: bool,
}

const fn common(code: &'static str, name: &'static str, told: &'static str) -> Language {
    Language { code, name, told: Some(told), common: true }
}

const fn told(code: &'static str, name: &'static str, told: &'static str) -> Language {
    Language { code, name, told: Some(told), common: false }
}

const fn rare(code: &'static str, name: &'static str) -> Language {
    Language { code, name, told: None, common: false }
}

/// XLM-R's languages.
const LANGUAGES: [Language; 92] = [
    common("en", "English", "eng"),
    common("ar", "Arabic", "ara"),
    common("cs", "Czech", "ces"),
    common("da", "Danish", "dan"),
    common("de", "German", "deu"),
    common("el", "Greek", "ell"),
    common("es", "Spanish", "spa"),
    common("fi", "Finnish", "fin"),
    common("fr", "French", "fra"),
    common("he", "Hebrew", "heb"),
    common("hi", "Hindi", "hin"),
    common("hu", "Hungarian", "hun"),
    common("id", "Indonesian", "ind"),
    common("it", "Italian", "ita"),
    common("ja", "Japanese", "jpn"),
    common("ko", "Korean", "kor"),
    common("nl", "Dutch", "nld"),
    common("no", "Norwegian", "nob"),
    common("pl", "Polish", "pol"),
    common("pt", "Portuguese", "por"),
    common("ro", "Romanian", "ron"),
    common("ru", "Russian", "rus"),
    common("sv", "Swedish", "swe"),
    common("th", "Thai", "tha"),
    common("tr", "Turkish", "tur"),
    common("uk", "Ukrainian", "ukr"),
    common("vi", "Vietnamese", "vie"),
    common("zh", "Chinese", "cmn"),
    told("af", "Afrikaans", "afr"),
    told("am", "Amharic", "amh"),
    told("az", "Azerbaijani", "aze"),
    told("be", "Belarusian", "bel"),
    told("bg", "Bulgarian", "bul"),
    told("bn", "Bengali", "ben"),
    told("ca", "Catalan", "cat"),
    told("eo", "Esperanto", "epo"),
    told("et", "Estonian", "est"),
    told("fa", "Persian", "pes"),
    told("gu", "Gujarati", "guj"),
    told("hr", "Croatian", "hrv"),
    told("hy", "Armenian", "hye"),
    told("jv", "Javanese", "jav"),
    told("ka", "Georgian", "kat"),
    told("km", "Khmer", "khm"),
    told("kn", "Kannada", "kan"),
    told("la", "Latin", "lat"),
    told("lt", "Lithuanian", "lit"),
    told("lv", "Latvian", "lav"),
    told("mk", "Macedonian", "mkd"),
    told("ml", "Malayalam", "mal"),
    told("mr", "Marathi", "mar"),
    told("my", "Burmese", "mya"),
    told("ne", "Nepali", "nep"),
    told("or", "Oriya", "ori"),
    told("pa", "Punjabi", "pan"),
    told("si", "Sinhala", "sin"),
    told("sk", "Slovak", "slk"),
    told("sl", "Slovenian", "slv"),
    told("sr", "Serbian", "srp"),
    told("ta", "Tamil", "tam"),
    told("te", "Telugu", "tel"),
    told("tl", "Filipino", "tgl"),
    told("ur", "Urdu", "urd"),
    told("uz", "Uzbek", "uzb"),
    told("yi", "Yiddish", "yid"),
    rare("as", "Assamese"),
    rare("br", "Breton"),
    rare("bs", "Bosnian"),
    rare("cy", "Welsh"),
    rare("eu", "Basque"),
    rare("fy", "Western Frisian"),
    rare("ga", "Irish"),
    rare("gd", "Scottish Gaelic"),
    rare("gl", "Galician"),
    rare("ha", "Hausa"),
    rare("is", "Icelandic"),
    rare("kk", "Kazakh"),
    rare("ku", "Kurdish"),
    rare("ky", "Kyrgyz"),
    rare("lo", "Lao"),
    rare("mg", "Malagasy"),
    rare("mn", "Mongolian"),
    rare("ms", "Malay"),
    rare("om", "Oromo"),
    rare("ps", "Pashto"),
    rare("sa", "Sanskrit"),
    rare("sd", "Sindhi"),
    rare("so", "Somali"),
    rare("sq", "Albanian"),
    rare("su", "Sundanese"),
    rare("sw", "Swahili"),
    rare("ug", "Uyghur"),
];

impl Language {
    /// English.
    pub const ENGLISH: Language = LANGUAGES[0];

    /// A language by its code.
    ///
    /// # Errors
    /// None has it.
    pub fn of(code: &str) -> Result<Self> {
        match LANGUAGES.iter().find(|language| language.code == code) {
            Some(language) => Ok(*language),
            None => bail!("{code:?} is no language of XLM-R's list by ISO 639-1 (en, de, zh, ..)"),
        }
    }

    /// A language by its code, also with a region (`en-GB`), its ISO 639-3 code, or its English name.
    ///
    /// # Errors
    /// None is meant.
    pub fn named(name: &str) -> Result<Self> {
        let name = name.trim().to_lowercase();
        let code = name.split(['-', '_']).next().unwrap_or_default();
        let named =
            |one: &&Self| one.told == Some(name.as_str()) || one.name.to_lowercase() == name;
        match LANGUAGES.iter().find(named) {
            Some(language) => Ok(*language),
            None => Self::of(code),
        }
    }

    /// Whether a text is in it: `None` where the text is too short, or the language none that can be told.
    pub fn speaks(&self, text: &str) -> Option<bool> {
        self.other(text, LEAST_LETTERS, RELIABLE).map(|other| other.is_none())
    }

    /// The other language that a text is in, or `Some(None)` where it is in this one. `None` where the text has
    /// fewer letters, where that would be less sure, or where the language is none that can be told.
    pub fn other(&self, text: &str, letters: usize, sure: f64) -> Option<Option<&'static str>> {
        let expected = Lang::from_code(self.told?)?;
        let found = detect(text, letters)?;
        match found.lang() {
            lang if lang == expected => Some(None),
            _ if found.confidence() <= sure => None,
            // Near enough to be taken for each other in a sentence.
            lang => {
                let near = [
                    &[Lang::Hrv, Lang::Srp, Lang::Slv, Lang::Mkd, Lang::Bul][..],
                    &[Lang::Dan, Lang::Nob, Lang::Swe],
                    &[Lang::Ces, Lang::Slk],
                    &[Lang::Hin, Lang::Mar, Lang::Nep],
                    &[Lang::Ind, Lang::Jav],
                    &[Lang::Rus, Lang::Ukr, Lang::Bel],
                    &[Lang::Nld, Lang::Afr],
                ];
                let taken = |group: &&[Lang]| group.contains(&lang) && group.contains(&expected);
                (!near.iter().any(taken)).then(|| Some(lang.eng_name()))
            }
        }
    }
}

/// What a text says of its language; `None` where it has fewer letters.
fn detect(text: &str, letters: usize) -> Option<Info> {
    let end = text.char_indices().nth(MOST_LETTERS).map_or(text.len(), |(end, _)| end);
    let text = &text[..end];
    if text.chars().filter(|letter| letter.is_alphabetic()).count() < letters {
        return None;
    }
    whatlang::detect(text)
}

/// Languages, each with its share.
#[derive(Debug, Clone, PartialEq)]
pub struct Mixture(Vec<(Language, f64)>);

impl Mixture {
    /// Parses `en`, `en=0.5,de=0.3,fr`, or `xlm-r`: all of XLM-R's, 43 % English and most of the rest in those
    /// with much text, as in E5-Mistral (arXiv:2401.00368, figure 2).
    ///
    /// # Errors
    /// An unknown code, or a share that is none.
    pub fn parse(text: &str) -> Result<Self> {
        if text == "xlm-r" {
            let rest = |common: bool| {
                LANGUAGES.iter().skip(1).filter(|one| one.common == common).count() as f64
            };
            let share = |language: &Language| match language {
                english if *english == Language::ENGLISH => 0.43,
                language if language.common => 0.45 / rest(true),
                _ => 0.12 / rest(false),
            };
            return Ok(Self(
                LANGUAGES.iter().map(|language| (*language, share(language))).collect(),
            ));
        }
        let mut languages = Vec::new();
        for part in text.split(',').map(str::trim) {
            let (code, share) = part.split_once('=').unwrap_or((part, "1"));
            let share: f64 = share.parse().unwrap_or(-1.0);
            if !share.is_finite() || share <= 0.0 {
                bail!("{part:?}: the share of a language is a number above 0");
            }
            languages.push((Language::of(code)?, share));
        }
        Ok(Self(languages))
    }

    /// The language of most of these texts, where it is surely none of the mixture's.
    pub fn other(&self, texts: &[String]) -> Option<Language> {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for text in texts {
            if self.0.iter().all(|(language, _)| language.speaks(text) == Some(false)) {
                let found = detect(text, LEAST_LETTERS)?;
                *counts.entry(found.lang().code()).or_default() += 1;
            }
        }
        let (code, count) = counts.into_iter().max_by_key(|(_, count)| *count)?;
        let most = 2 * count > texts.len();
        LANGUAGES.iter().find(|language| most && language.told == Some(code)).copied()
    }

    /// The language at a place between 0 and 1.
    pub fn at(&self, place: f64) -> Language {
        let total: f64 = self.0.iter().map(|(_, share)| share).sum();
        let mut sum = 0.0;
        for (language, share) in &self.0 {
            sum += share / total;
            if place < sum {
                return *language;
            }
        }
        self.0.last().map_or(Language::ENGLISH, |(language, _)| *language)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_told_by_language_where_that_can_be() {
        let english = "The river floods the lower streets of the town every spring.";
        let german = "Der Fluss überschwemmt jedes Jahr im Frühling die unteren Straßen der Stadt.";
        let of = |code: &str| Language::of(code).unwrap();
        assert_eq!((of("en").speaks(english), of("en").speaks(german)), (Some(true), Some(false)));
        let other = |languages: &str, texts: [&str; 3]| {
            let texts = texts.map(String::from);
            Mixture::parse(languages).unwrap().other(&texts).map(|language| language.code)
        };
        assert_eq!(other("en", [german, english, german]), Some("de"));
        assert_eq!(other("en", [german, english, "kurz"]), None);
        assert_eq!(other("en,de", [german, german, german]), None);
        assert_eq!((of("de").speaks(german), of("ja").speaks(english)), (Some(true), Some(false)));
        assert_eq!((of("en").speaks("river"), of("is").speaks(english)), (None, None));
        assert_eq!(of("en").other(german, 24, 0.9), Some(Some("German")));
        assert_eq!(
            (of("en").other(german, 200, 0.9), of("en").other(english, 24, 0.9)),
            (None, Some(None))
        );
        for name in ["EN", "en-GB", "eng", " English "] {
            assert_eq!(Language::named(name).unwrap(), Language::ENGLISH, "{name}");
        }
        assert!(Language::named("klingon").is_err());
        // Each code that can be told is one that the library knows.
        for language in LANGUAGES {
            assert!(
                language.told.is_none_or(|code| Lang::from_code(code).is_some()),
                "{}",
                language.code
            );
        }
    }

    #[test]
    fn shares_add_up() {
        let mixture = Mixture::parse("xlm-r").unwrap();
        let english =
            (0..10_000).filter(|i| mixture.at(f64::from(*i) / 1e4) == Language::ENGLISH).count();
        assert!((4290..=4310).contains(&english), "{english}");
        let two = Mixture::parse("de=3, fr").unwrap();
        assert_eq!((two.at(0.74).code, two.at(0.76).code, two.at(1.0).code), ("de", "fr", "fr"));
        for wrong in ["xx", "en=0", "en=x", ""] {
            assert!(Mixture::parse(wrong).is_err(), "{wrong}");
        }
    }
}
