"""Codes and names of languages: ISO 639-1, as clients send them, and the codes of models."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from jaxformer.errors import UserError

# Codes of target languages by source language; empty if nobody knows the languages of the model.
Languages: TypeAlias = Mapping[str, Sequence[str]]

# ISO 639's code for a language that nobody has determined.
UNDETERMINED = "und"

# A language a line: its ISO 639-1 code, its codes in ISO 639-3 and NLLB, and its name in English.
# Languages without an ISO 639-1 code have one code of three letters.
_TABLE = """
af afr Afrikaans
ak aka Akan
am amh Amharic
ar ara arb Arabic
as asm Assamese
ast Asturian
ay aym ayr Aymara
az aze azj Azerbaijani
ba bak Bashkir
be bel Belarusian
bg bul Bulgarian
bm bam Bambara
bn ben Bengali
bo bod Tibetan
br bre Breton
bs bos Bosnian
ca cat Catalan
ceb Cebuano
ckb Central Kurdish
cs ces Czech
cy cym Welsh
da dan Danish
de deu German
dz dzo Dzongkha
ee ewe Ewe
el ell Greek
en eng English
eo epo Esperanto
es spa Spanish
et est ekk Estonian
eu eus Basque
fa fas pes Persian
ff ful fuv Fulah
fi fin Finnish
fj fij Fijian
fo fao Faroese
fr fra French
fy fry Western Frisian
ga gle Irish
gd gla Scottish Gaelic
gl glg Galician
gn grn Guarani
gu guj Gujarati
ha hau Hausa
he heb Hebrew
hi hin Hindi
hr hrv Croatian
ht hat Haitian
hu hun Hungarian
hy hye Armenian
id ind Indonesian
ig ibo Igbo
ilo Iloko
is isl Icelandic
it ita Italian
ja jpn Japanese
jv jav Javanese
ka kat Georgian
kg kon Kongo
ki kik Kikuyu
kk kaz Kazakh
km khm Khmer
kn kan Kannada
ko kor Korean
ku kur kmr Kurdish
ky kir Kyrgyz
lb ltz Luxembourgish
lg lug Ganda
li lim Limburgish
ln lin Lingala
lo lao Lao
lt lit Lithuanian
lv lav lvs Latvian
mg mlg plt Malagasy
mi mri Maori
mk mkd Macedonian
ml mal Malayalam
mn mon khk Mongolian
mr mar Marathi
ms msa zsm Malay
mt mlt Maltese
my mya Burmese
nb nob Norwegian Bokmål
ne nep npi Nepali
nl nld Dutch
nn nno Norwegian Nynorsk
no nor Norwegian
nso Northern Sotho
ny nya Chichewa
oc oci Occitan
om orm gaz Oromo
or ori ory Odia
pa pan Punjabi
pl pol Polish
ps pus pbt Pashto
pt por Portuguese
qu que quy Quechua
rn run Rundi
ro ron Romanian
ru rus Russian
rw kin Kinyarwanda
sa san Sanskrit
sc srd Sardinian
sd snd Sindhi
sg sag Sango
si sin Sinhala
sk slk Slovak
sl slv Slovenian
sm smo Samoan
sn sna Shona
so som Somali
sq sqi als Albanian
sr srp Serbian
ss ssw Swati
st sot Southern Sotho
su sun Sundanese
sv swe Swedish
sw swa swh Swahili
ta tam Tamil
te tel Telugu
tg tgk Tajik
th tha Thai
ti tir Tigrinya
tk tuk Turkmen
tl tgl Tagalog
tn tsn Tswana
tr tur Turkish
ts tso Tsonga
tt tat Tatar
tw twi Twi
ug uig Uyghur
uk ukr Ukrainian
ur urd Urdu
uz uzb uzn Uzbek
vi vie Vietnamese
wo wol Wolof
xh xho Xhosa
yi yid ydd Yiddish
yo yor Yoruba
yue Cantonese
zh zho cmn Chinese
zh-Hant Chinese (traditional)
zu zul Zulu
"""

# Codes of LibreTranslate that are not ISO 639's.
_OTHERS = {"zt": "zh-Hant", "pb": "pt"}
# Scripts and regions of the Chinese that a model takes for another language than "zh".
_TRADITIONAL = {"hant", "hk", "mo", "tw"}


def _read_table() -> tuple[dict[str, str], dict[str, str]]:
    """Returns the short code of each code of the table, and the name of each short code."""
    short: dict[str, str] = dict(_OTHERS)
    names: dict[str, str] = {}
    for line in _TABLE.strip().splitlines():
        name = re.sub(r"^([a-z]{2,3}(-Hant)? )+", "", line)
        first, *others = line.removesuffix(name).split()
        names[first] = name
        short |= dict.fromkeys(others, first)
    return short, names


_SHORT, NAMES = _read_table()
NAMES[UNDETERMINED] = "Unknown language"


def short_code(code: str) -> str:
    """Returns the code that clients send for a language: ISO 639-1 where it has one.

    Scripts and regions are left out, except of Chinese.

    >>> [short_code(code) for code in ("eng_Latn", "deu", "pt_BR", "ceb_Latn", "zho_Hant")]
    ['en', 'de', 'pt', 'ceb', 'zh-Hant']
    """
    language, *others = re.split("[-_]", code.lower())
    short = _SHORT.get(language, language)
    if short == "zh" and not _TRADITIONAL.isdisjoint(others):
        return "zh-Hant"
    return short or code


def language_name(code: str) -> str:
    """Returns the English name of a language; its code if nobody knows its name.

    >>> [language_name(code) for code in ("de", "deu_Latn", "xx")]
    ['German', 'German', 'xx']
    """
    return NAMES.get(short_code(code), code)


def parse_pairs(words: Sequence[str]) -> Languages:
    """Returns the languages of pairs such as "en-de"."""
    languages: dict[str, list[str]] = {}
    for word in words:
        pair = re.fullmatch(r"(\w+)-(\w+)", word, re.ASCII)
        if pair is None:
            raise UserError(f"--languages: expected pairs such as en-de: got {word}")

        source, target = pair.groups()
        targets = languages.setdefault(source, [])
        if target not in targets:
            targets.append(target)

    return languages


def client_codes(codes: Iterable[str]) -> dict[str, str]:
    """Returns codes of a model by the codes that clients send.

    If several have one short code, such as two scripts of a language, only the first gets it.
    """
    found: dict[str, str] = {}
    for code in codes:
        short = short_code(code)
        found[code if short in found else short] = code
    return found


def find_code(code: str, known: Iterable[str]) -> str | None:
    """Returns the known code of the language that a client names, or None.

    >>> find_code("en", ["deu_Latn", "eng_Latn"])
    'eng_Latn'
    """
    codes = list(known)

    # An equal code first, then one that differs in its script or region.
    for normalize in (_with_hyphens, short_code):
        for each in codes:
            if normalize(each) == normalize(code):
                return each

    return None


def _with_hyphens(code: str) -> str:
    """Returns one spelling of codes such as pt_br and pt-BR."""
    return code.lower().replace("_", "-")
