"""Rules 1 to 3 of grading: where in a completion its answer stands."""

import pytest
from support import assert_linear

from trl_mmreason.grading.extraction import extract_answer, read_gold

THINKING = [
    (r"<think>\boxed{3}</think> 4", "4"),
    (r"<think>\boxed{3}</think> so \boxed{4}", "4"),
    (r"<THINK>a</Think><think>\boxed{3}</think>\boxed{4}", "4"),
    (r"\boxed{3}</think>", None),  # templates often open the thinking in the prompt
    (r"</think>\boxed{3}", "3"),
    (r"<think>\boxed{3}", None),
    (r"\boxed{3}<think>", None),
    (r"<think>a</think>\boxed{3}<think> wait", None),
    ("<think>数一数，答案是3</think>答案是4。", "4"),
    ("<think>答案是3", None),
    ("<thinking>7</thinking> so \\boxed{4}", "4"),  # another tag, which hides nothing
]
BOXES_AND_TAGS = [
    (r"3+4=\boxed{7}", "7"),
    (r"3+4=\fbox {7} apples", "7"),
    (r"\boxed{1} no, \boxed{2}", "2"),
    (r"\boxed{1}. \boxed{2}", "2"),  # a full stop is no separator
    (r"第一次得到\boxed{1}，检查后改为\boxed{2}", "2"),
    (r"so \boxed{\frac{1}{2}}", r"\frac{1}{2}"),
    (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
    (r"\boxed{\left\{1\right.}", r"\left\{1\right"),
    (r"\\boxed{4}", "4"),
    (r"line\\\boxed{4}", "4"),
    (r"{\boxed{4}}", "4"),
    (r"a stray } and \boxed{4}", "4"),
    (r"a stray { and \boxed{4}", "4"),
    (r"\boxed{ $4$ }", "4"),
    (r"\boxed{5\,\text{cm}}", r"5\,\text{cm}"),
    (r"\boxed{2**3 + 4**5}", "2**3 + 4**5"),
    (r"\boxed{A^*}", "A^*"),
    ("<answer> B </answer>", "B"),
    ("<ANSWER>红帽子</Answer>", "红帽子"),
    ("<|answer_start|>7<|answer_end|>", "7"),
    (r"<answer>1</answer> then \boxed{2}", "2"),
    (r"\boxed{2} then <answer>1</answer>", "1"),
    (r"\boxed{8} <answer>9</answer>", "9"),
    ("<answer>1</answer><answer>2</answer>", "2"),
    ("Put it in <answer> tags. <answer>4</answer>", "4"),
    ("<answer>4<|answer_end|> or <answer>5</answer>", "5"),
    (r"<answer>so \boxed{3} is it</answer>", "3"),
    (r"<answer>\boxed{3} then \boxed{5} it is</answer>", "5"),
    (r"<answer>\boxed{3} and \boxed{5}</answer>", "3, 5"),
    (r"\boxed{x = \boxed{3}}", "3"),
    (r"\boxed{\boxed{1}, \boxed{2}}", "1, 2"),
    (r"\boxed{<answer>4</answer>}", "4"),
    (r"<answer>\boxed{4</answer>}", r"\boxed{4"),  # the box does not reach over the tag's end
    (r"\boxed{3} The answer is 5.", "3"),
    (r"\boxed{3} and then \boxed{4", None),
    (r"\boxed{3} and then <answer>4", None),
    (r"\boxed{4", None),
    (r"The answer is \boxed{4", None),
    (r"The answer is <answer>4", None),
    ("<answer>4", None),
    (r"\boxed 4", "4"),
    (r"\mathboxed{4} is what I think", None),
]
LISTS = [
    (r"\boxed{2}, \boxed{ 2 }", "2"),
    (r"\boxed{x  = 2}, \boxed{x = 2}, \boxed{1}", "x = 2, 1"),
    (r"\boxed{3}, \boxed{1}, \boxed{3}", "3, 1"),
    (r"\boxed{9} no: \boxed{1}, \boxed{2} and \boxed{3}", "1, 2, 3"),
    (r"\boxed{a \boxed{(1,2)}}, \boxed{(3,4)}", "(1,2), (3,4)"),
    (r"\boxed{1}" + " " * 100 + r"\boxed{2}", "2"),
]
BLANK_BOXES = [  # are no candidates
    (r"\boxed{}", None),
    (r"\boxed{ }", None),
    (r"<answer>\boxed{{}}</answer>", None),
    (r"The answer is 4. \boxed{}", None),
    ("<answer></answer> 4", None),
    (r"\boxed{4} and \boxed{}", None),
    (r"<answer>4</answer> <answer> </answer>", None),
    (r"\boxed{4} <answer>\boxed{ }</answer>", None),
    (r"\boxed{4}, which I was told to put in \boxed{}", "4"),
    (r"It goes in \boxed{}. The answer is 9.", "9"),
    (r"\boxed{0}", "0"),
]
DECLARATIONS = [
    ("The option is D.", "D"),
    ("One might think the answer is B, but the correct answer is D.", "D"),
    (r"\boxed{42} is incorrect. The correct answer is 43.", "43"),
    (r"It may be \boxed{60}, but this is incorrect since a pyramid needs a third. The answer is 20.", "20"),
    (r"It is \boxed{60}, which is not the 20 that we saw before.", "60"),
    ("A: true. B: false. Hence the correct letters are A and C.", "A and C"),
    ("The option that best matches is D.", "D"),
    ("So the answer is 4.", "4"),
    ("The answer is 4.5.", "4.5"),
    ("The answer is: 4", "4"),
    ("THE FINAL ANSWER IS 4", "4"),
    ("The answer is 3. No, the answer is 5.", "5"),
    ("The answer is 4.\nNow I check it, and all is well.", "4"),
    ("The answer is 4. The sum of both is 9.", "4"),
    ("The answers are 1 and 2.", "1 and 2"),
    ("The answer to 2 + 2 is 4.", "4"),
    ("The answer would be 4 cm.", "4 cm"),
    ("The answer is therefore 4.", "4"),
    ("The answer is indeed 4, not 5.", "4"),
    ("The answer is not 4", "not 4"),
    ("The correct option is B.", "B"),
    ("The right choice: (C)", "(C)"),
    ("The correct answer choice is D.", "D"),
    ("The answer is C. This is because 4 > 3.", "C"),
    ("The answer is C. 24 cm", "C. 24 cm"),
    ("The answer is (B) the red hat.", "(B) the red hat"),
    ("The answer is 4 sq. cm.", "4 sq. cm"),
    ("The answer is St. Louis.", "St. Louis"),
    ("The answer is 4, because 2 + 2 makes 4.", "4"),
    ("The answer is 4 since 2 + 2 makes 4.", "4"),
    ("The answer is 4, so we stop.", "4"),
    ("The answer is 4, which is even.", "4"),
    ("The answer is 1, 2 and 3.", "1, 2 and 3"),
    ("The answer is yes, because it is larger.", "yes, because it is larger"),
    ("The answer is $4$ cm.", "$4$ cm"),
    ("The answer is $4$.", "4"),
    ("The answer is $3$ and $4$.", "$3$ and $4$"),
    ("The answer is $4$ and that is what we wanted.", "4"),
    ("The answer is $5. She paid it with a note of $10.", "$5"),
    (r"The answer is \(x = 4\), as we have seen.", "x = 4"),
    ("The answer is:\n$$\nx = 4\n$$\nThat was it.", "x = 4"),
    ("The answer is:\n\\[\nx = 4.\n\\]", "x = 4"),
    ('The answer is "red".', "red"),
    ("The answer is **4**, as counted.", "4"),
    ("The answer is **4** cm.", "4 cm"),
    ("Answer: 4", "4"),
    ("**Answer:** 4", "4"),
    ("**Answer**: 4", "4"),
    ("**Answer: 4**", "4"),
    ("### Answer: 4", "4"),
    ("Answer：4", "4"),
    ("answer = 4", "4"),
    ("**Final Answer**\n\n4", "4"),
    ("We add them up.\n## Final Answer\n$4$ cm\n", "$4$ cm"),
    ("Answer: the final answer is 4", "4"),
    ("Answer: 4. To check: the answer is", "4"),
    ("3 + 4 is 7\n#### 7", "7"),
    ("3 + 4 is 7 #### 7", "7"),
    ("#### 7\nI hope that this helps you.", "7"),
    ("#### Step one\nWe add.\n#### 12 cm", "12 cm"),
    ("The answer is 4.\n#### Check\nIt is well.", "4"),
    ("#### Final answer\n4", "4"),
]
CHINESE_DECLARATIONS = [
    ("3加1，所以答案是4。", "4"),
    ("答案为4.5。", "4.5"),
    ("答案：4", "4"),
    ("**答案**：4", "4"),
    ("【答案】4", "4"),
    ("故答案为：12厘米．", "12厘米"),
    ("正确答案应该是 (C)。", "(C)"),
    ("正确选项是B。", "B"),
    ("因此最终答案是$4$厘米。", "$4$厘米"),
    ("## 最终答案\n4", "4"),
    ("答案是4，因为3加1等于4。", "4"),
    ("答案是4。检查：3加1等于4。", "4"),
    ("答案是3。不对，答案是4。", "4"),
    ("经过计算，故选C．", "C"),
    ("应选：B", "B"),
    ("我们选 C。", "C"),
    ("所以选择 C", "C"),
    ("选（C）", "（C）"),
    ("应選Ａ。", "Ａ"),
    ("计算之后我认为不应选A。", None),
    ("计算之后我认为不选A。", None),
    ("小明选择苹果，我觉得也可以。", None),
    ("我认为选项C是错误的。", None),
    ("我认为答案还不清楚。", None),
]
BARE_ANSWERS = [
    ("42", "42"),
    (" 7.\n", "7"),
    ("-3.5", "-3.5"),
    ("0.333...", "0.333..."),
    ("$7$", "7"),
    (r"\(x = 4\)", "x = 4"),
    ("$3$, $4$", "$3$, $4$"),
    ("**7**", "7"),
    ("“red”", "red"),
    ("5'", "5'"),
    ("x = 4", "x = 4"),
    ("(C)", "(C)"),
    ("c", "c"),
    ("C. 24 cm", "C. 24 cm"),
    ("C. It is larger", "C. It is larger"),
    ("a red hat", "a red hat"),
    ("A hat", "A hat"),
    ("12 cm", "12 cm"),
    ("Yes", "Yes"),
    ("Yes, because it is larger", "Yes, because it is larger"),
    ("no because it is larger", "no because it is larger"),
    ("3 + i", "3 + i"),
    ("I and II", "I and II"),
    ("May 5", "May 5"),
    ("the mean", "the mean"),
    ("does not exist", "does not exist"),
    ("不可能", "不可能"),
    ("不是正方形", "不是正方形"),
    ("红帽子", "红帽子"),
    ("12厘米。", "12厘米"),
    ("是，因为它更大", "是，因为它更大"),
    ("x" * 100, "x" * 100),
]
NO_DECLARATION = [
    "The least likely answer is D.",
    "The worst answer is D.",
    "A tempting answer is D.",
    "Many students think the answer is D.",
    "It's unlikely that the answer is D.",
    "错误的答案是D",
    "错误答案是D",
    "我不认为答案是B。",
    "很难说答案是B",
    "有人说答案是B",
    "There is no proof that the answer is B.",
    r"My final answer is not \boxed{42}.",
    r"答案不是 $\boxed{42}$",
    "To answer: we have to count first.",
    "I have to answer the question of who is taller.",
    "I answered: 4 is what I see.",
    "Another option is to count the 4 dots.",
    "Answer:",
    "**Answer:**",
    "The answer is",
    "#### ",
    "#### Check\nIt is well.",
    "答案是",
    "答案：",
]
PROSE = [
    "",
    " \n ",
    "x" * 101,
    "4\n5",
    "3 plus 4 makes 7",
    "I think it is 7",
    "I count 3 and then 4 so it must be 7 I guess, though maybe not",
    "There are 7.",
    "It is 7",
    "What is 7?",
    "Three of them. Seven",
    "Nothing here but:",
    "No idea is what I have, 7 perhaps",
    "Yesterday it was 7",
    "I count 7",
    "我认为是7",
    "这是7",
    "3加4等于7",
    "是7吗？",
    "一共有7个",
]
BOXED = THINKING + BOXES_AND_TAGS + LISTS + BLANK_BOXES
SAID = DECLARATIONS + CHINESE_DECLARATIONS + BARE_ANSWERS
NOT_FOUND = [(text, None) for text in NO_DECLARATION + PROSE]


@pytest.mark.parametrize(("text", "answer"), BOXED + SAID + NOT_FOUND)
def test_extract_answer(text, answer):
    assert extract_answer(text) == answer


@pytest.mark.parametrize(
    "separator",
    [
        ", ",
        " ",
        "",
        ";",
        "\n",
        " and ",
        " or ",
        r"\text{ and }",
        r",\quad ",
        r"$ or $",
        r"\), \(",
        "、",
        "，",
        "；",
        "和",
        " 或 ",
        "及",
        "与",
    ],
)
def test_neighbouring_boxes_are_one_list(separator):
    text = rf"so $\boxed{{-2}}{separator}\boxed{{3}}$."
    assert extract_answer(text) == "-2, 3"


def test_named_boxes_are_one_list_where_the_gold_is_one():
    text = r"so $x = \boxed{4}$ and $y = \boxed{-1}$."
    assert extract_answer(text, parts=True) == "4, -1"
    assert extract_answer(text) == "-1"
    assert extract_answer(r"$x = \boxed{4} = \boxed{2^2}$", parts=True) == "2^2"


@pytest.mark.parametrize("words", [" no, ", ". ", " then ", "，不对，", "。", " = ", "band", " but " * 20])
def test_boxes_with_words_between_are_a_correction(words):
    assert extract_answer(rf"\boxed{{-2}}{words}\boxed{{3}}") == "3"


@pytest.mark.parametrize(
    ("text", "gold"),
    [
        ("4", "4"),
        (" $12\\pi$ ", "12\\pi"),
        (r"\(x\)", "x"),
        (r"\[x\]", "x"),
        ("$$x$$", "x"),
        ("$3$ and $4$", "$3$ and $4$"),
        ("She has 48/2 = <<48/2=24>>24 left.\n#### 24", "24"),
        (r"so \boxed{7}.", "7"),
        (r"\boxed{1}, \boxed{2}", "1, 2"),
        ("<answer> 4 </answer>", "4"),
        ("It is larger, as anyone can see.", "It is larger, as anyone can see."),
        ("The answer is 4", "4"),
        ("**180**", "180"),
        ("<think>Perhaps 190?</think> Therefore, the answer is: 180.", "180"),
        (r"\boxed{}", ""),
        ("  ", ""),
    ],
)
def test_golds(text, gold):
    assert read_gold(text) == gold


_UNITS = r'\boxed{ \boxed{1}, <answer> <answer></answer> </think> <think></think> { } $ $$ \ \( ( " , * **a'.split()
_UNITS += [r"\boxed{} ", r"\boxed ", "the answer is ", "answer: ", "answer to ", "answer\n", "the ", "#### ", "a. "]
_UNITS += [" ", "\n", "答案是", "故选", "选 A"]


@pytest.mark.full
@pytest.mark.parametrize("unit", _UNITS)
@pytest.mark.parametrize("frame", ["{}", r"\boxed{{{}}}", "The answer is ${}$."], ids=["alone", "boxed", "declared"])
def test_the_time_is_linear(unit, frame):
    assert_linear(lambda text: extract_answer(frame.format(text)), unit, 40_000)


def test_a_hundred_thousand_nested_boxes():
    assert extract_answer(r"\boxed{" * 100_000 + "7" + "}" * 100_000) == "7"
    assert_linear(lambda boxes: extract_answer(boxes + "7" + "}" * (len(boxes) // 7)), r"\boxed{", 350_000)


@pytest.mark.parametrize(
    "text",
    [
        "\\boxed{24}\n\nWait, actually it should be 25.",
        "$\\boxed{24}$\n\nWait, that is wrong. It is 25.",
        "\\boxed{24}. No, that is incorrect.",
        "One might think it is \\boxed{24}, but this is incorrect since a pyramid needs a third.",
        "\\boxed{24}, which is wrong",
        "The answer is 24. Wait, actually it should be 25.",
        "The answer is 24. Hmm, that is wrong. It is 25.",
    ],
)
def test_an_answer_that_the_next_sentence_takes_back_is_none(text):
    assert extract_answer(text) != "24"


@pytest.mark.parametrize(
    "text",
    [
        "\\boxed{24}. No further simplification is possible.",
        "\\boxed{24}\n\nWait, let me check: 4*6 = 24. Yes.",
        "\\boxed{20}. Wait, that is wrong. The answer is 24.",
        "The answer is 24. Actually, we can verify this by substitution.",
        "The final answer is:\n\n- **24**",
        "The final answer is:\n\n1. 24",
    ],
)
def test_an_answer_that_stands_is_found(text):
    assert extract_answer(text) == "24"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<|begin_of_box|>B<|end_of_box|>", "B"),
        ('{"reasoning": "12 and 20", "final_answer": "8"}', "8"),
        ("Final answers:\n(1) BC = 5\n(2) Area = 30", "(1) BC = 5; (2) Area = 30"),
        ("**Answer:** She spent $9.24.", "$9.24"),
        (r"\theta = \boxed{30} \text{ rad}", "30  rad"),
        ('{"answer": 42}', "42"),
        ("Answer: _42_", "42"),
        ("**Final Answer**\nIt is less than 11, i.e. 3 < c < 11.", "It is less than 11, i.e. 3 < c < 11"),
        ("**Answer:** 5/14, or about 0.357", "5/14"),
        (r"The answer is \boxed{7}. Actually no, I mis-read the axis.", None),
        (r"\boxed{B} Actually, B fails for x = 0. The correct option is D.", "D"),
    ],
)
def test_answers_of_some_models(text, answer):
    assert extract_answer(text) == answer


def test_boxes_of_named_things_keep_their_names():
    text = r"The mean is \boxed{6} and the median is \boxed{5.5}."
    assert extract_answer(text, parts=True) == "mean = 6, median = 5.5"
    assert extract_answer(text) == "5.5"


def test_a_minus_sign_is_no_bullet():
    assert extract_answer("The final answer is:\n\n-24") == extract_answer("The answer is -24") == "-24"


@pytest.mark.parametrize(
    ("text", "answer"),
    [("Mar. 14th, 2015", "Mar. 14th, 2015"), ("(1) 20 m/s\n(2) 40 m", "(1) 20 m/s; (2) 40 m")],
)
def test_a_line_or_a_line_for_each_part_is_an_answer(text, answer):
    assert extract_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("因此概率为 **3/4**。", "3/4"),
        ("答：一共需要120元。", "120元"),
        ("周长为 $2\\times(8+5)=26$ 厘米，答：周长是26厘米。", "26厘米"),
        ("(60-50)/50=0.2。所以增长率是 20%。", "20%"),
        ("所以线段AB的长为6cm。", "6cm"),
        ("所以∠C=40°。", "∠C=40°"),
        ("So the result is negative fifteen, i.e. **-15**", "-15"),
        ("The area is πd²/4 = 25π/4 ≈ 19.63. So the exact area is **25π/4**.", "25π/4"),
        ("Therefore, x equals 7/2.", "x = 7/2"),
        ("So x is at least 7.", "x >= 7"),
        ("So the total is $1,200.", "$1,200"),
        ("There are four divisions of 0.5 m each. Hence λ = 2 m.", "λ = 2 m"),
        (r"It must be negative. So the charge is $-8\times10^{-9}$ C.", r"-8\times10^{-9} C"),
        ("The mark is between 20 and 30, so the reading is 25℃.", "25℃"),
        ("The base is not 3; therefore, x = 7.", "x = 7"),
    ],
)
def test_the_last_sentence_or_clause_may_conclude_a_value(text, answer):
    assert extract_answer(text) == answer


@pytest.mark.parametrize(
    "text",
    [
        "x equals 7/2 in the end.",
        "So x equals 7. But wait, I misread it.",
        "So x equals 7. Hmm, no: it is 8 by the second equation.",
        "So far, the total is 7.",
        "So x is not 7.",
        "So there are 3 more than before.",
        "Thus there are 7 or 8 of them.",
        "Thus the length is 5 cm longer than before.",
        "Therefore, if y is 3, x is 7.",
        "If the mark were 20, so the reading is 25.",
        "Suppose that y is 2.5, so x is 7.",
        "The scale is in ml, so could it be 7?",
        "The mark is at 20, so the reading is not 25.",
        "The mark is at 20, so the reading is 25, or 26.",
        "It was drawn so that x is 7.",
        "So is it 7?",
        "So the area is 5 times 3.",
        "So it has 7 red and 3 blue dots.",
        "因此不是 3。",
        "因此可能为3。",
        "所以面积是12的两倍。",
        "所以小明比小红多12个。",
        "所以长为7宽为8。",
        "如果 x 是 2，所以 y 是 3。",
        "I counted them, so I think it is 7.",
        "So we know that x + y is 7.",
        "So half of it is 7.",
        "So the mistake in step 3 is 7.",
        "So 3 is 7.",
        "So x is 7, and y is 8.",
        "So x is 7 and y is 8.",
        "So the price is 5 higher.",
        "所以小明有7个，小红有8个。",
        "3 red ones are here\nand so are 4 blue ones",
    ],
)
def test_what_concludes_no_value_is_no_answer(text):
    assert extract_answer(text) is None


@pytest.mark.parametrize(
    "unit",
    ["So x is ", "So. ", "So the a is, i.e., ", "。所以为", "Mar. ", "(1) a\n", "因此为1,1,1,", ", so if ", "if "],
)
def test_the_time_for_a_conclusion_is_linear(unit):
    assert_linear(extract_answer, unit, 100_000)


@pytest.mark.parametrize("unit", ["The answer is ", "答案是", "#### ", "If the answer is ", "Answer: "])
def test_of_many_declarations_the_last_ones_are_read_in_linear_time(unit):
    assert extract_answer("The answer is 5.\n" + unit * 400) == "5"
    assert extract_answer("The answer is 5.\n" + unit * 600) is None
    assert_linear(extract_answer, unit, 100_000)


@pytest.mark.parametrize("gold", ["AB=CD (答案不唯一)", "AB=CD（答案不唯一，合理即可）", "答案不唯一，如AB=CD"])
def test_a_note_is_no_part_of_a_gold(gold):
    assert read_gold(gold) == "AB=CD"
