"""Writes the ids that llama.cpp gives nasty texts under the embedded model's tokenizer.

Run it where llama-cpp-python is installed; it knows nothing of this engine, so it cannot agree by mistake::

    python tools/golden_tokens.py MODEL.gguf tests/text/golden_smollm2.json
"""

# ruff: noqa: RUF001 - look-alike characters are the point of the texts
import json
import sys
from pathlib import Path

from llama_cpp import Llama

TEXTS = (
    "",
    " ",
    "  ",
    "   ",
    "\n",
    "\n\n",
    "\n\n\n\n",
    "\t",
    "\t\t\t",
    "\r\n",
    "\r",
    "\r\r\n\n\r",
    " \n",
    "\n ",
    " \n \n  \n",
    "\t \t\n \t",
    "a\r\nb\r\n",
    "line one\n\n\nline two\n \n   line three",
    "Hello world",
    " Hello world",
    "  Hello  world  ",
    "Hello\tworld",
    "HELLO World hELLO",
    "return  1",
    "return   1",
    "return 1",
    "x = 1\n  y = 22\n    z = 333",
    "0",
    "1234567890",
    "12 345 6789",
    "3.14159, -2.5e10, 1_000_000, 1,234,567.89",
    "v1.2.3-rc4+build.5",
    "٣٤٥ ४५६ Ⅷ ½ ² ① 五",
    "1st 2nd 3rd a1b2c3",
    "$100 50% #42 @7",
    "it's they're I'm you'd we'll I've IT'S don'T 'tis",
    "it’s “quoted” — dash… ‘x’",
    "!!! ??? ... --- *** ~~~ ///",
    "a.b,c;d:e!f?g",
    "([{<>}])",
    "C:\\Users\\name\\n not a newline",
    "def f(x):\n\treturn {'a': [x ** 2, x // 3], \"b\": None}  # done\n",
    "for (int i=0;i<10;++i){a[i]+=b->c;}",
    "SELECT * FROM t WHERE x <> 'y''z';",
    '<div class="a b">&nbsp;</div>\n<!-- x -->',
    "https://example.org/a%20b?c=d&e=f#g",
    "user.name+tag@example.co.uk",
    "café naïve Ünïcödé façade Ångström",
    "cafe\u0301 n\u0303 o\u0308\u0323 Z\u0351\u036b\u0343",
    "ďábelské ódy",
    "Привет, мир! Ёжик",
    "Γειά σου Κόσμε",
    "שלום עולם مرحبا بالعالم",
    "नमस्ते दुनिया",
    "你好，世界！",
    "日本語のテキスト、カタカナ。",
    "안녕하세요 세계",
    "สวัสดีชาวโลก",
    "你好hello世界123",
    "😀",
    "😀😃 😄",
    "👋🏽 👨‍👩‍👧‍👦 🏳️‍🌈 🇨🇿🇯🇵",
    "❤️ ☎ ✔︎ 1️⃣",
    "𝒳𝔘𝕬 𐍈 𠜎",
    "\u200b\u200c\u200d\ufeff\u2060",
    "a\u00a0b\u2003c\u3000d\u2028e\u2029f\u0085g",
    "nul\x00bell\x07esc\x1b[0m del\x7f",
    "\x01\x02\x03\x04\x05\x06\x0e\x0f\x10",
    "a\x05b th\x06e",
    "\ufffd \ufffe \uffff",
    "\U000f0000\U0010ffff \U00040000",
    "\ud7ff\ue000\uf8ff",
    "ǅ ŉ ﬁ ß İ ı ſ K",
    "<|im_start|>system\nYou are free<|im_end|>",
    "<|endoftext|>",
    "a<|im_end|>b <|im_end|> c<|im_end",
    "<repo_name><file_sep> <filename>x",
    "<|im_end|><|im_end|>\n<|im_start|>",
    " " * 31 + "x",
    " " * 200,
    "\n" * 50 + " \t" * 10,
    "a" * 100,
    "ab" * 60,
    "=" * 64 + "\n" + "-" * 79,
    "The quick brown fox jumps over the lazy dog. " * 3,
    "Ġ Ċ ġ Ā Ń",
    "▁ ▁a",
    "<0x0A> <0xFF>",
    "##heading\n\n- item\n  * sub\n1. one\n```py\nx\n```",
    "| a | b |\n|---|---|\n| 1 | 2 |",
    "E = mc² ∑∫√∞ ≠ ≤ α→β ∀x∃y",
    "camelCaseString snake_case_string kebab-case SCREAMING_CASE XMLHttpRequest2",
    "Zażółć gęślą jaźń",
    "Đây là tiếng Việt",
    "mixed привет 123 мир\t\n  ok?",
    "'s 't 're",
    "\n's \n\n're  'd",
    "  123  456  abc  ",
    "\t1\n2 \n 3",
)


def main(model: str, target: str) -> None:
    """Tokenize TEXTS with the special tokens' spelling as plain text and as tokens."""
    llama = Llama(model_path=model, vocab_only=True, verbose=False)
    cases = [
        {
            "text": text,
            "plain": llama.tokenize(text.encode(), add_bos=False, special=False),
            "special": llama.tokenize(text.encode(), add_bos=False, special=True),
        }
        for text in TEXTS
    ]
    lines = ",\n".join(json.dumps(case) for case in cases)
    Path(target).write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
