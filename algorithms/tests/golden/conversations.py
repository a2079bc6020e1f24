"""Makes `conversations.json` beside it with Hugging Face transformers: a small tokenizer, chat
templates, and what `apply_chat_template` makes of conversations: token ids, and the mask of those in
`generation` blocks.

usage: python conversations.py   (needs transformers, tokenizers and jinja2)
"""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

HERE = Path(__file__).parent
TEXTS = [
    "What is the time? It is half past nine, and the kettle is on the stove.",
    "The cat sat on the mat. Whose cat is it? Ours.",
    '{"name": "weather", "arguments": {"city": "Oslo", "days": 2}}',
    "system user assistant tool",
]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool>", "</tool>"]

# Turns as most have them, with blocks around what the model says.
MARKED = """{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' }}
        {%- generation %}
            {{- message.content | trim + '<|im_end|>' }}
        {%- endgeneration %}
        {{- '\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}"""

# Tools, calls of them, and what they give; blocks whose white space is kept.
TOOLS = """{% if tools %}<|im_start|>system
You may call:
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}
{% for message in messages %}
{% if message.role == 'assistant' %}
<|im_start|>assistant
{% generation %}
{% if message.content %}{{ message.content }}{% endif %}
{% for call in message.tool_calls or [] %}
{% set function = call.function %}
<tool>{{ {'name': function.name, 'arguments': function.arguments} | tojson }}</tool>
{% endfor %}<|im_end|>
{% endgeneration %}

{% else %}
<|im_start|>{{ message['role'] }}
{{ message['content'] }}<|im_end|>
{% endif %}
{% endfor %}
{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

# Without blocks: brackets, a first token, and an end behind each reply.
BRACKETS = """{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ ' ' + message['content'] + eos_token }}{% endif %}{% endfor %}"""

# Without blocks: the usual turns.
PLAIN = """{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

# Values as Python prints them.
NUMBERS = """{% for m in messages %}{% generation %}{{ m.content }} {{ m.data | tojson }}{% for v in m.data.values() %} {{ v }}{% endfor %} {{ m.data | tojson(indent=2) }}{% endgeneration %}{% endfor %}"""

TEMPLATES = {"numbers": NUMBERS, "marked": MARKED, "tools": TOOLS, "brackets": BRACKETS, "plain": PLAIN}


def turn(role, content, **more):
    return {"role": role, "content": content, **more}


WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather; \"often\" right.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}
CALL = {
    "type": "function",
    "function": {"name": "weather", "arguments": {"city": "Oslo", "days": 2, "as": "wörds"}},
}
CONVERSATIONS = {
    "one": [turn("user", "What is the time?"), turn("assistant", "Half past nine.")],
    "several": [
        turn("system", "Be brief."),
        turn("user", "Whose cat is it?"),
        turn("assistant", "  Ours. "),
        turn("user", "And the mat?\n\nTell me."),
        turn("assistant", "Ours, too: \u00e4\u00f6\u4f60\U0001f408."),
        turn("user", "Thanks"),
    ],
    "tools": [
        turn("user", "How is it in Oslo?"),
        turn("assistant", "", tool_calls=[CALL]),
        turn("tool", '{"sky": "grey"}'),
        turn("assistant", "Grey."),
    ],
}

VALUES = {
    "near": 1e-05,
    "nearer": 2.5e-07,
    "tenth": 0.1,
    "small": 0.0001,
    "whole": 1e16,
    "large": 123456789012345.0,
    "most": 18446744073709551615,
    "least": -9223372036854775808,
    "yes": True,
    "nothing": None,
    "all": [1, 2.0, "ä"],
}

raw = Tokenizer(models.BPE())
raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
raw.decoder = decoders.ByteLevel()
alphabet = pre_tokenizers.ByteLevel.alphabet()
trainer = trainers.BpeTrainer(
    vocab_size=400, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
)
raw.train_from_iterator(TEXTS, trainer)
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=raw, bos_token=SPECIAL[0], eos_token=SPECIAL[2], pad_token=SPECIAL[0]
)
cases = []
for template, text in TEMPLATES.items():
    conversations = CONVERSATIONS
    if template == "numbers":
        calls = [turn("assistant", None, tool_calls=[CALL], data=VALUES)]
        conversations = {"numbers": [turn("assistant", "a", data=VALUES)], "calls": calls}
    for name, messages in conversations.items():
        tools = [WEATHER] if name == "tools" and template == "tools" else None
        marked = "{%- generation" in text or "{% generation" in text
        told = tokenizer.apply_chat_template(
            messages,
            tools=tools,
            chat_template=text,
            tokenize=True,
            return_dict=True,
            return_assistant_tokens_mask=marked,
        )
        cases.append(
            {
                "template": template,
                "messages": messages,
                "tools": tools,
                "ids": told["input_ids"],
                "mask": told.get("assistant_masks"),
            }
        )
with TemporaryDirectory() as folder:
    tokenizer.save_pretrained(folder)
    files = {
        path.name: path.read_text()
        for path in sorted(Path(folder).iterdir())
        if path.name in ("tokenizer.json", "tokenizer_config.json")
    }
golden = {"files": files, "templates": TEMPLATES, "cases": cases}
(HERE / "conversations.json").write_text(json.dumps(golden, ensure_ascii=False) + "\n")
