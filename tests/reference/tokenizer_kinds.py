"""Makes tests/fixtures/tokenizers: a tiny tokenizer of each kind that the families have, and what transformers makes of texts.

    python tests/reference/tokenizer_kinds.py

Each is trained on sentences that this script makes up; WordPiece's and Unigram's come out a little otherwise each time. What stands around its vocabulary (normalizer, pre-tokenizer,
post-processor, decoder, special tokens) is as in the published tokenizer.json that KINDS names. What transformers' own class for
the family builds was compared with it where there is one (transformers 5.24); `memory` marks what was written down without
a file at hand. A fixture has the tokenizer, its tokenizer_config.json, and ids and masks of TEXTS alone and as pairs (ids, masks and
token types), cut to 16 tokens, padded on either side.
"""

import base64
import json
import random
import struct
import unicodedata
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast, __version__

FIXTURES = Path(__file__).parent.parent / "fixtures" / "tokenizers"
LENGTH = 16
SIZE = 400

WORDS = """river north lantern harbour granite meadow violin timber kettle signal bridge winter copper orchard ferry candle
the a of and to in under behind without carries follows counts unwinds repaints remembers quietly slowly twice never
Fluß Straße Käse größer Übung Mädchen über für und die der nicht gehört
été garçon naïve œuvre déjà être où Noël façade élève qu'il l'eau
niño mañana corazón señora piñata ¿cómo ¡vaya
река мост зима фонарь тихо считает лодка ёлка
нова ποτάμι γέφυρα οδος φως
नदी पुल सर्दी किताब धीरे
نهر جسر شتاء مصباح
河流 北方 灯笼 石头 冬天 桥 提琴 木材 春 東京 かわ はし ふゆ カメラ がくせい 강 다리 겨울 등불
don't we've they'll I'm it's you're he'd can't""".split()
SIGNS = [".", ".", ".", "!", "?", ";", "…", " — yes.", ", no?", "。"]
LINES = ["fn main() { let x = a[i] + 10; }", "for (int i = 0; i < 100; ++i) { sum += v[i]; }", "if x != 3:\n    return x ** 2",
         "\tcopy\tpaste\ttab", "https://example.org/a/b?c=1&d=2", "name@example.org", "SELECT * FROM t WHERE id = 42;",
         "café naïve déjà vu", "cafe\u0301 nai\u0308ve", "１２３ ＡＢＣ ﬁne", "a\u00a0b\u00a0c",
         "3.14159 1,000,000 2026-11-30 12:34:56", "🙂 🚢🌊 👩‍👩‍👧 🇳🇴 👍🏽 ❤️", "unquestionably internationalisation counterrevolutionary"]


def sentences():
    """A few hundred made-up sentences, always the same."""
    chance = random.Random(7)
    made = []
    for i in range(420):
        words = [chance.choice(WORDS) for _ in range(chance.randint(3, 9))]
        line = " ".join(words) + chance.choice(SIGNS)
        made.append(line[0].upper() + line[1:] if chance.random() < 0.7 else line)
        if i % 20 == 0:
            made.append(LINES[i // 20 % len(LINES)])
    return made


# A text, or parts that are repeated.
TEXTS = [
    "", " ", "   ", "\t", "\n\n", "\u00a0", "\u3000\u200b", "\r\n \t",
    "the river follows the harbour", "The RIVER, the Harbour; and THE Bridge!", " a space before", "a space behind ",
    "two  spaces   and    more", "tab\there\t\ttwice", "line\nline\n\nline\r\nend", "a\u00a0no-break\u202fspace\u2009thin",
    "Déjà vu: l'été où l'élève mangeait, à Noël", "De\u0301ja\u0300 vu: e\u0301te\u0301 nai\u0308f", "Straße STRASSE ẞ größer ÜBUNG",
    "İstanbul ISTANBUL ıstanbul", "ΟΔΟΣ οδός Οδος ΦΩΣ", "река мост Ёлка ёлка ЗИМА", "नदी पुल सर्दी किताब", "نهر جسر شِتَاء",
    "河流 北方的灯笼，石头桥。", "東京のかわとカメラ、ｶﾒﾗ", "강 다리 겨울 등불", "\u1100\u1161\u11bc is 강", "tiếng Việt tie\u0302\u0301ng", "ไทยไม่มีช่องว่าง",
    "🙂", "🚢🌊 sails 👩‍👩‍👧 home 🇳🇴👍🏽 ❤️ and ❤", "x\u0301\u0302\u0303\u0304y", "zero\u200bwidth\u200cnon\u200djoin\ufeffed", "soft\u00adhyphen",
    "controls \u0000\u0007\u001b[0m\u007f end", "next\u0085line\u2028sep\u2029par", "ﬁne ﬀ ① ² ½ ™ Å Å", "ＡＢＣ １２３ ！？ ～", "replacement \ufffd sign", "▁marked▁ ▁▁words",
    "7", "1234567 3.14159 1,000,000", "٣٤ ४५ Ⅷ x²", "don't WE'VE they'll I'M it's 'tis rock'n'roll", "“quotes” ‘single’ — dash… ¿qué?",
    "fn main() { println!(\"{}\", a[i] << 2); }", "if x != 3:\n    return x ** 2  # twice", "https://example.org/a_b?c=1&d=%20 name@example.org",
    "unquestionably internationalisation", "Donaudampfschifffahrtsgesellschaft" * 4, "[CLS] a [SEP] b [MASK] [UNK] [PAD]", "<s> a </s> b <mask> <unk><pad>",
    "<bos>a<eos> <|endoftext|>b<|begin_of_text|> <|im_end|>", "€ £ ¥ ₿ ∑ ∞ ≠ → ©",
    # Longer than what Kiln reads at first of a text (4096 bytes). The last one has its tokens behind that.
    [["the river follows the harbour, ", 260]], [["中", 1500]], [["a", 5000]], [[" ", 5000], ["x y\n", 1]], [["a" + " " * 250, 17], ["a ", 40]],
]
CODE, LONG, LATE = 46, 55, 59

BERT = [("[PAD]", {}), ("[UNK]", {}), ("[CLS]", {}), ("[SEP]", {}), ("[MASK]", {})]
QWEN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
LLAMA = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def double_array(rules):
    """A table of replacements as SentencePiece writes it: the size of a double-array trie in bytes, the trie (as darts-clone has it),
    and the replacements, each with a zero behind it."""
    blob, keys = b"", {}
    for key, value in sorted(rules.items()):
        keys[key.encode()] = len(blob)
        blob += value.encode() + b"\0"
    tree = {}
    for key, value in keys.items():
        node = tree
        for byte in key:
            node = node.setdefault(byte, {})
        node[None] = value
    units, used = {0: 0}, {0}

    def place(node, at):
        labels = sorted((byte or 0) for byte in node)
        base = next(base for base in range(1, 1 << 20) if not any(base ^ label in used for label in labels))
        used.update(base ^ label for label in labels)
        units[at] |= (at ^ base) << 10 | (1 << 8 if None in node else 0)
        if None in node:
            units[base] = node[None] | 1 << 31
        inner = {byte: child for byte, child in node.items() if byte is not None}
        for byte in inner:
            units[base ^ byte] = byte
        for byte, child in inner.items():
            place(child, base ^ byte)

    place(tree, 0)
    size = max(units) + 1
    trie = struct.pack(f"<{size}I", *(units.get(i, 0) for i in range(size)))
    return struct.pack("<I", len(trie)) + trie + blob


def nmt_nfkc():
    """The rules of SentencePiece's nmt_nfkc (builder.cc) for the characters of our texts and those of Latin-1: NFKC, spaces for other
    white space and marks without width, and nothing for control characters. All of them are 320 kB."""
    letters = {letter for text in sentences() for letter in text}
    letters |= {letter for text in TEXTS for letter in whole(text)} | {chr(code) for code in range(0xa0, 0x180)}
    rules = {}
    for letter in letters:
        composed, apart = unicodedata.normalize("NFKC", letter), unicodedata.normalize("NFD", letter)
        for key in (letter, apart):
            if key != composed:
                rules[key] = composed
    for code in [9, 10, 12, 13, 0x1680, 0x200b, 0x200c, 0x200e, 0x200f, 0x2028, 0x2029, 0x2581, 0xfeff, 0xfffd]:
        rules[chr(code)] = " "
    for code in [*range(1, 9), 11, *range(14, 32), 0x7f, 0x8f, 0x9f]:
        rules[chr(code)] = ""
    # FULLWIDTH TILDE stays.
    rules.pop("\uff5e", None)
    return double_array(rules)


def whole(text):
    return text if isinstance(text, str) else "".join(part * times for part, times in text)


def trained(trainer, model, normalizer, pre_tokenizer):
    """A vocabulary's model as JSON."""
    tokenizer = Tokenizer(model)
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.train_from_iterator(sentences(), trainer)
    return json.loads(tokenizer.to_str())["model"]


def assembled(model, normalizer, pre_tokenizer, post_processor, decoder, special, more=()):
    tokenizer = Tokenizer(model)
    if normalizer:
        tokenizer.normalizer = normalizer
    if pre_tokenizer:
        tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoder
    tokenizer.add_special_tokens([AddedToken(name, normalized=False, **options) for name, options in special])
    tokenizer.add_tokens(list(more))
    tokenizer.post_processor = post_processor(lambda name: (name, tokenizer.token_to_id(name)))
    return tokenizer


def bert():
    normalizer = normalizers.BertNormalizer(clean_text=True, handle_chinese_chars=True, strip_accents=None, lowercase=True)
    trainer = trainers.WordPieceTrainer(vocab_size=SIZE, special_tokens=[name for name, _ in BERT], limit_alphabet=110, show_progress=False)
    made = trained(trainer, models.WordPiece(unk_token="[UNK]"), normalizer, pre_tokenizers.BertPreTokenizer())
    model = models.WordPiece(made["vocab"], unk_token="[UNK]", max_input_chars_per_word=100)
    return assembled(model, normalizer, pre_tokenizers.BertPreTokenizer(), lambda of: processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[of("[CLS]"), of("[SEP]")]),
        decoders.WordPiece("##", cleanup=True), BERT)


def xlm_roberta():
    normalizer = normalizers.Precompiled(nmt_nfkc())
    words = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace("▁", prepend_scheme="always")])
    trainer = trainers.UnigramTrainer(vocab_size=SIZE - 5, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False)
    pieces = [(piece, round(score, 5)) for piece, score in trained(trainer, models.Unigram(), normalizer, words)["vocab"] if piece != "<unk>"]
    zero = [(name, 0.0) for name in ["<s>", "<pad>", "</s>", "<unk>"]]
    model = models.Unigram(zero + pieces + [("<mask>", 0.0)], unk_id=3, byte_fallback=False)
    special = [("<s>", {}), ("<pad>", {}), ("</s>", {}), ("<unk>", {}), ("<mask>", {"lstrip": True})]
    return assembled(model, normalizer, words, lambda of: processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[of("<s>"), of("</s>")]),
        decoders.Metaspace("▁", prepend_scheme="always"), special)


def byte_level(first, last, normalizer, pre_tokenizer, ignore_merges=False, spaces=()):
    """The model of a byte-level BPE whose special tokens are first and last."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=SIZE - len(last) - len(spaces), special_tokens=first, initial_alphabet=alphabet, show_progress=False)
    made = trained(trainer, models.BPE(), normalizer, pre_tokenizer)
    return models.BPE(made["vocab"], [tuple(pair) for pair in made["merges"]], fuse_unk=False, byte_fallback=False, ignore_merges=ignore_merges)


def roberta():
    special = [("<s>", {}), ("<pad>", {}), ("</s>", {}), ("<unk>", {}), ("<mask>", {"lstrip": True})]
    levels = pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=True)
    model = byte_level([name for name, _ in special[:4]], ["<mask>"], None, levels)
    return assembled(model, None, levels, lambda of: processors.RobertaProcessing(
        of("</s>"), of("<s>"), trim_offsets=True, add_prefix_space=False),
        decoders.ByteLevel(), special)


def modernbert():
    special = [("[UNK]", {}), ("[CLS]", {}), ("[SEP]", {}), ("[PAD]", {}), ("[MASK]", {"lstrip": True})]
    levels = pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=True)
    spaces = [" " * count for count in range(5, 1, -1)]
    model = byte_level([], [name for name, _ in special], normalizers.NFC(), levels, spaces=spaces)
    added = [AddedToken(token, normalized=True) for token in spaces] + [AddedToken("|||EMAIL_ADDRESS|||", normalized=True)]
    return assembled(model, normalizers.NFC(), levels, lambda of: processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[of("[CLS]"), of("[SEP]")]),
        decoders.ByteLevel(), special, added)


def split(expression, trim_offsets):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(expression), "isolated", invert=False), pre_tokenizers.ByteLevel(
        add_prefix_space=False, trim_offsets=trim_offsets, use_regex=False)])


def qwen3():
    special = [("<|endoftext|>", {}), ("<|im_start|>", {}), ("<|im_end|>", {})]
    words = split(QWEN, False)
    model = byte_level([], [name for name, _ in special], normalizers.NFC(), words)
    return assembled(model, normalizers.NFC(), words, lambda of: processors.Sequence([
        processors.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False), processors.TemplateProcessing(
            single="$A <|endoftext|>", pair="$A <|endoftext|> $B:1 <|endoftext|>:1", special_tokens=[of("<|endoftext|>")])]),
        decoders.ByteLevel(), special)


def llama3():
    special = [("<|begin_of_text|>", {}), ("<|end_of_text|>", {}), ("<|eot_id|>", {})]
    words = split(LLAMA, True)
    model = byte_level([], [name for name, _ in special], None, words, ignore_merges=True)
    return assembled(model, None, words, lambda of: processors.Sequence([
        processors.ByteLevel(add_prefix_space=True, trim_offsets=False, use_regex=True), processors.TemplateProcessing(
            single="<|begin_of_text|> $A", pair="<|begin_of_text|> $A <|begin_of_text|>:1 $B:1", special_tokens=[of("<|begin_of_text|>")])]),
        decoders.ByteLevel(), special)


def sentence_piece(first):
    """The model of a SentencePiece BPE with a token for every byte, in which no token reaches over the beginning of a word."""
    words = pre_tokenizers.Metaspace("▁", prepend_scheme="always", split=True)
    trainer = trainers.BpeTrainer(vocab_size=SIZE - 256 - len(first) - 2, limit_alphabet=60, show_progress=False)
    made = trained(trainer, models.BPE(), None, words)
    runs = [("▁", "▁"), ("▁▁", "▁▁")]
    merges = runs + [tuple(pair) for pair in made["merges"]]
    letters = [token for token in made["vocab"] if len(token) == 1]
    tokens = first + [f"<0x{byte:02X}>" for byte in range(256)] + ["".join(pair) for pair in merges] + letters
    vocab = {}
    for token in tokens:
        vocab.setdefault(token, len(vocab))
    return models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)


def mistral():
    special = [("<unk>", {}), ("<s>", {}), ("</s>", {})]
    normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    return assembled(sentence_piece([name for name, _ in special]), normalizer, None, lambda of: processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[of("<s>")]), decoder, special)


def gemma():
    special = [("<pad>", {}), ("<eos>", {}), ("<bos>", {}), ("<unk>", {}), ("<mask>", {})]
    added = [AddedToken(token, normalized=False) for token in ["\n\n", "\n\n\n", "▁▁", "▁▁▁"]]
    decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return assembled(sentence_piece([name for name, _ in special]), normalizers.Replace(" ", "▁"),
                     pre_tokenizers.Split(" ", "merged_with_previous", invert=False), lambda of: processors.TemplateProcessing(
        single="<bos> $A <eos>", pair="<bos> $A <eos> <bos>:1 $B:1 <eos>:1", special_tokens=[of("<bos>"), of("<eos>")]), decoder, special, added)


# What makes each, the published file that it is as, and its names of special tokens.
KINDS = {
    "bert": (bert, "sentence-transformers/all-MiniLM-L6-v2; BertTokenizer",
             {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]", "mask_token": "[MASK]"}),
    "xlm-roberta": (xlm_roberta, "FacebookAI/xlm-roberta-base; XLMRobertaTokenizer, builder.cc of SentencePiece",
                    {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "cls_token": "<s>", "sep_token": "</s>", "unk_token": "<unk>",
                     "mask_token": "<mask>"}),
    "roberta": (roberta, "FacebookAI/roberta-base; RobertaTokenizer",
                {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "cls_token": "<s>", "sep_token": "</s>", "unk_token": "<unk>",
                 "mask_token": "<mask>"}),
    "modernbert": (modernbert, "answerdotai/ModernBERT-base; GPTNeoXTokenizer but for the template (memory)",
                   {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]", "mask_token": "[MASK]"}),
    "qwen3": (qwen3, "Qwen/Qwen3-Embedding-0.6B; Qwen2Tokenizer but for the post-processor (memory)",
              {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}),
    "llama3": (llama3, "meta-llama/Llama-3.2-1B (memory)", {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>", "pad_token": "<|eot_id|>"}),
    "mistral": (mistral, "mistralai/Mistral-7B-v0.1; LlamaConverter of transformers with legacy = true, but for the template (memory)",
                {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "</s>"}),
    "gemma": (gemma, "google/embeddinggemma-300m; GemmaTokenizer but for the template (memory)",
              {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "unk_token": "<unk>", "mask_token": "<mask>"}),
}


def batch(tokenizer, side, *texts):
    tokenizer.padding_side = side
    made = tokenizer(*texts, truncation=True, max_length=LENGTH, padding=True, return_token_type_ids=True)
    line = lambda row: "".join(map(str, row))
    result = {"ids": made["input_ids"], "mask": [line(row) for row in made["attention_mask"]]}
    types = [line(row) for row in made["token_type_ids"]]
    if len(texts) == 2:
        return result | {"types": types}
    assert not any("1" in row for row in types)
    return result


def main():
    FIXTURES.mkdir(exist_ok=True)
    texts = [whole(text) for text in TEXTS]
    assert len(texts) == 60 and len(set(texts)) == 60 and texts[CODE].startswith("fn main")
    # Each is first once and second once, and no two are long: of what is cut of two, the library makes all pairs. Which of two is the
    # longer, to be cut first, shows behind what is read at first.
    pairs = [(i, 7 * i % 60) for i in range(60)] + [(CODE, LATE), (LATE, CODE)]
    seconds = [texts[b] for _, b in pairs]
    common = {"transformers": __version__, "texts": TEXTS, "pairs": pairs}
    (FIXTURES / "texts.json").write_text(json.dumps(common, ensure_ascii=False, indent=0) + "\n")
    for name, (make, published, names) in KINDS.items():
        own = make()
        size = own.get_vocab_size()
        assert 200 <= size <= SIZE + 10, f"{name}: {size}"
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=own, **names)
        firsts = [texts[a] for a, _ in pairs]
        made = {"as": published, "tokenizer.json": json.loads(own.to_str()),
                "tokenizer_config.json": names | {"model_max_length": 512, "tokenizer_class": "PreTrainedTokenizerFast"}}
        for side in ["right", "left"]:
            made[side] = {"alone": batch(tokenizer, side, texts), "pairs": batch(tokenizer, side, firsts, seconds)}
        text = json.dumps(made, ensure_ascii=False, separators=(",", ":")) + "\n"
        (FIXTURES / f"{name}.json").write_text(text)
        unknown = own.token_to_id(names.get("unk_token", "none"))
        print(f"{name}: {size} tokens, {len(text)} letters; of the texts", sum(len(own.encode(text).ids) for text in texts[:LONG]), "tokens,",
              sum(own.encode(text).ids.count(unknown) for text in texts[:LONG]), "unknown")


if __name__ == "__main__":
    main()
