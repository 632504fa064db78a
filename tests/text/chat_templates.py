"""Chat templates in the manner of well-known model families, and conversations to try them on."""

LLAMA3 = (
    "{{- bos_token }}{%- set loop_messages = messages %}"
    "{%- for message in loop_messages %}"
    "{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'"
    " + message['content'] | trim + '<|eot_id|>' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}"
)

QWEN2 = """{%- if tools %}
    {{- '<|im_start|>system\\n# Tools\\n' }}
    {%- for tool in tools %}{{- tool | tojson }}{%- endfor %}
{%- elif messages[0].role != 'system' %}
    {{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nBe kind<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

MISTRAL = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate user/assistant') }}{% endif %}"
    "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
    "{% else %}{{ message['content'] + eos_token }}{% endif %}{% endfor %}"
)

# White space control, loop controls, the generation tag, JSON of non-ASCII text, the date, an unset name.
EVERYTHING = """
{% set ns = namespace(users=0) %}
Today: {{ strftime_now('%Y') }} {{ not_there }}
{% for message in messages %}
    {% if message.role == 'system' %}
        {% continue %}
    {% endif %}
    {% if loop.index > 3 %}{% break %}{% endif %}
    {% if message.role == 'assistant' %}
        {% generation %}{% set said = message.content %}
<a>{{ said }}</a>{% endgeneration %}
    {% else %}
        {% set ns.users = ns.users + 1 %}
{{ message | tojson }} {{ message.content.split() | tojson(indent=2) }} {{ said is defined }}
    {% endif %}
{% endfor %}
{{ ns.users }}"""

ALL = {"llama3": LLAMA3, "qwen2": QWEN2, "smollm2": SMOLLM2, "mistral": MISTRAL, "everything": EVERYTHING}

ONE = [{"role": "user", "content": "Hello there"}]
THREE = [
    {"role": "user", "content": "  What is 2+2?\n"},
    {"role": "assistant", "content": "é <b>4</b> \"quoted\" 'x' {{ 1 }}"},
    {"role": "user", "content": "日本 👋🏽\n\n"},
]
WITH_SYSTEM = [{"role": "system", "content": "Be brief."}, *THREE]
CONVERSATIONS = {"one": ONE, "three": THREE, "system": WITH_SYSTEM}
