import pytest
from support import load

from trl_mmreason.compat.chat_template import next_turn_ids

FOLLOWUP = "Please check 12 and 3."


def conversation(*turns):
    roles = ("user", "assistant")
    return [{"role": roles[i % 2], "content": [{"type": "text", "text": text}]} for i, text in enumerate(turns)]


def test_the_next_turn_is_what_the_template_writes_after_an_answer(family, checkpoints):
    _, processor = load(checkpoints(family))
    tokenizer = processor.tokenizer
    render = {"tokenize": False, "add_generation_prompt": True}
    prompt = processor.apply_chat_template(conversation("How many?"), **render)
    whole = processor.apply_chat_template(conversation("How many?", "It is 7.", FOLLOWUP), **render)
    assert whole.startswith(prompt)
    answer, end, _ = whole[len(prompt) :].partition(tokenizer.eos_token)
    assert (answer.strip(), end) == ("It is 7.", tokenizer.eos_token)

    def ids(text):
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    made = next_turn_ids(processor, FOLLOWUP, eos_token_ids=[tokenizer.eos_token_id])
    assert ids(prompt) + ids(answer) + [tokenizer.eos_token_id] + made == ids(whole)


def test_a_text_tokenizer_works_too(checkpoints):
    _, processor = load(checkpoints("qwen2_5_vl"))
    eos = [processor.tokenizer.eos_token_id]
    assert next_turn_ids(processor.tokenizer, FOLLOWUP, eos_token_ids=eos) == next_turn_ids(
        processor, FOLLOWUP, eos_token_ids=eos
    )


def test_a_template_that_forgets_earlier_answers_is_refused(checkpoints):
    _, processor = load(checkpoints("qwen2_5_vl"))
    forgetful = "{{ messages[-1]['content'][0]['text'] }}"
    with pytest.raises(ValueError, match="does not show an earlier answer"):
        next_turn_ids(processor, FOLLOWUP, eos_token_ids=[2], chat_template=forgetful)


def test_a_template_that_ends_turns_otherwise_is_refused(checkpoints):
    _, processor = load(checkpoints("qwen2_5_vl"))
    with pytest.raises(ValueError, match="eos_token_id"):
        next_turn_ids(processor, FOLLOWUP, eos_token_ids=[processor.tokenizer.pad_token_id])
