"""Templates of families as they are published, rendered as transformers renders them."""

from __future__ import annotations

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from nodewire.chat.renderer import Renderer
from nodewire.protocol.model.chat_template import ChatTemplate

CHATML = (
    "{%- if tools %}\n    {{- '<|im_start|>system\\n' }}\n    {%- if messages[0]['role'] == 'system' %}\n"
    "        {{- messages[0]['content'] }}\n    {%- else %}\n        {{- 'You are helpful.' }}\n    {%- endif %}\n"
    '    {{- "\\n\\n# Tools\\n<tools>" }}\n    {%- for tool in tools %}\n        {{- "\\n" }}\n'
    '        {{- tool | tojson }}\n    {%- endfor %}\n    {{- "\\n</tools><tool_call></tool_call><|im_end|>\\n" }}\n'
    "{%- endif %}\n{%- for message in messages %}\n"
    '    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}\n'
    "        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}\n"
    "    {%- elif message.role == \"assistant\" %}\n        {{- '<|im_start|>' + message.role }}\n"
    "        {%- if message.content %}\n            {{- '\\n' + message.content }}\n        {%- endif %}\n"
    "        {%- for tool_call in message.tool_calls %}\n            {%- if tool_call.function is defined %}\n"
    "                {%- set tool_call = tool_call.function %}\n            {%- endif %}\n"
    '            {{- \'\\n<tool_call>\\n{"name": "\' }}\n            {{- tool_call.name }}\n'
    '            {{- \'", "arguments": \' }}\n            {{- tool_call.arguments | tojson }}\n'
    "            {{- '}\\n</tool_call>' }}\n        {%- endfor %}\n        {{- '<|im_end|>\\n' }}\n"
    '    {%- elif message.role == "tool" %}\n'
    "        {{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}\n"
    "    {%- endif %}\n{%- endfor %}\n"
    "{%- if add_generation_prompt %}\n    {{- '<|im_start|>assistant\\n' }}\n{%- endif %}\n"
)
LLAMA3 = (
    "{{- bos_token }}\n{%- set date = strftime_now('%d %b %Y') if false else '26 Jul 2024' %}\n"
    "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + "
    "message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' %}{{ content }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}{% if message['role'] == 'user' %}"
    "{{ '[INST] ' + message['content'] + ' [/INST]' }}{% else %}{% generation %}{{ message['content'] + eos_token}}"
    "{% endgeneration %}{% endif %}{% endfor %}"
)
NAMESPACED = (
    "{% set ns = namespace(seen=false, names=[]) %}\n{% for m in messages %}\n    {% if m.role == 'user' %}\n"
    "        {% set ns.seen = true %}\n    {% endif %}\n"
    "    {% if loop.index > 2 %}\n        {% break %}\n    {% endif %}\n"
    "    {{ m.content | upper | tojson(indent=2) }}\n{% endfor %}\n{{ ns.seen }}{{ dict(a=1) | tojson }}\n"
)
TALK = [{"role": "user", "content": " Où est\n le chat? <b>&"}, {"role": "assistant", "content": "là"}]
ASKS = [*TALK, {"role": "user", "content": "why"}]
CALL = {"type": "function", "function": {"name": "look", "arguments": {"at": "é", "n": [1, None, True]}}}
CALLS = [
    {"role": "system", "content": "be brief"},
    *ASKS,
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "content": "seen"},
]
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


@pytest.mark.parametrize(
    ("template", "messages", "tools"),
    [
        (CHATML, ASKS, []),
        (CHATML, CALLS, TOOLS),
        (LLAMA3, ASKS, []),
        (MISTRAL, ASKS, []),
        (NAMESPACED, ASKS, []),
        (NAMESPACED, ASKS[:1], TOOLS),
    ],
)
async def test_a_prompt_is_the_one_that_transformers_makes(template, messages, tools):
    (expected,), _ = render_jinja_template(
        conversations=[messages], tools=tools or None, chat_template=template, add_generation_prompt=True, **TOKENS
    )
    renderer = Renderer()
    try:
        assert await renderer.render(ChatTemplate(template=template, tokens=TOKENS), messages, tools) == expected
    finally:
        await renderer.close()


THINKS = (
    "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}"
    "{% if enable_thinking is defined and enable_thinking is false %}<think></think>{% endif %}{{ style.tone }}"
)


async def test_variables_of_the_callers_are_known_to_a_template_as_transformers_has_them():
    renderer, chat = Renderer(), ChatTemplate(template=THINKS, tokens=TOKENS)
    try:
        for known in ({"enable_thinking": False, "style": {"tone": "dry"}}, {"style": {}}):
            (expected,), _ = render_jinja_template(
                conversations=[ASKS], chat_template=THINKS, add_generation_prompt=True, **TOKENS, **known
            )
            assert await renderer.render(chat, ASKS, variables=known) == expected
        own = await renderer.render(chat, ASKS, variables={"style": {}, "bos_token": "<other>"})
        assert own.startswith(TOKENS["bos_token"])
    finally:
        await renderer.close()
