package remote

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/kvindex/kvindex/tokenize"
	"github.com/kvindex/kvindex/tokenize/chat"
)

// The texts have much of what merges, patterns, normalizers and added tokens can differ in: a text
// is one token list, so a rule that one text in ten needs is in one of them with near certainty.
// TestMergesAreFound measures it.
var judgeTexts = []struct{ name, text string }{
	{"prose", `The committee will meet again on Thursday, although nobody knows whether the new building will be ready. "We have already spent more money than we planned," she said, "and the people who live near the river don't want another road." It's hard to believe that they're still waiting; I've been told they'd rather leave. During the first half of the year, prices increased by about 12.5 percent, which is why several companies decided to reduce their costs and develop better products for their customers. Please read the following article carefully, then answer each question in your own words.`},
	{"a story", "His father was very tired that night, for he had counted every boat himself, and nothing was right. \"Who might have done this?\" he asked him, thinking about the light in our house. She took four more hours, and then she told them what had happened: something under the bridge moved without a sound. They could see it through the window, but each time anyone looked, everything was still. After that they never went back; their mother said it must be only the wind. \"Is there another way?\" \"Of course,\" he answered, \"because I know where they keep it.\" He walked a long way down to the small town, where men and women work from morning until evening. It was the first of many such days, and all of those who were there will remember how it began. Half the world does not know how the other half lives, nor he his own neighbours. So let us go over these rules once more, before anything else is done.\n\nThen, two years later, a letter came. The old man put it into a book, between two pages, and thought no more of it; he had seen enough. That is the end, which we should have been able to tell at once."},
	{"questions", "You are a helpful assistant. Summarize the text below in three sentences, then explain step by step how you would solve the problem. What is the capital of Australia? Write a short story about a robot who learns to paint. How can I improve my English vocabulary? Translate this sentence into French, and give an example of its use. Create a table with the advantages and disadvantages of each approach. I think, therefore I am. Could you please check whether my understanding is correct?"},
	{"code", "package main\n\nimport (\n\t\"fmt\"\n\t\"os\"\n)\n\n// main prints each argument.\nfunc main() {\n\tfor i, arg := range os.Args[1:] {\n\t\tif len(arg) == 0 || arg[0] != '-' {\n\t\t\tcontinue\n\t\t}\n\t\tfmt.Printf(\"%d: %s\\n\", i, arg)\n\t}\n}\n\ndef get_value(self, key: str, default=None) -> int:\n    try:\n        return self._values[key] + 1\n    except KeyError as error:\n        raise ValueError(f\"no {key!r}\") from error\n\n#include <stdio.h>\nint main(void) { const char *s = NULL; while (x->next != 0) { ++i; } return 0; }\nSELECT name, COUNT(*) FROM users WHERE id >= 10 GROUP BY name ORDER BY 2 DESC;\nconst result = await fetch(`/api/${id}`).then((r) => r.json()); // TODO\n"},
	{"data", `{"id": 12345, "name": "request_id", "values": [1, 2.50, -3e-7, true, null], "url": "https://example.com/path/index.html?query=a%20b&lang=en#top", "created_at": "2024-02-29T23:59:59.999Z"}` + "\n| a | b |\n|---|---:|\n| 1 | 2 |\n\n# Title\n\n* **bold** and `code`\n1. first\n2. second\n\n<div class=\"item\"><a href='#'>link</a></div>\n$x^2 + \\frac{1}{2} \\leq \\sum_{i=0}^{n} a_i$\n"},
	{"numbers", "0 7 42 123 1234 12345 123456 1234567 3.14159 1,000,000 1e10 0x7fff 192.168.0.1 +49 (0)30 1234-5678 $19.99 50% ½ ² Ⅷ ٣٤ १२ ３４ 2024-12-31 12:30:45 A4 H2O x86_64 utf8 v1.2.3"},
	{"spaces", "a b  c   d    e        f                g\n\n\nh\n \n  i\t\tj\t k\r\nl \r\n\r\nm\u00a0n\u3000o\u2003p\u200bq\ufeff" + strings.Repeat(" ", 70) + "r" + strings.Repeat("\n", 9) + strings.Repeat("\t", 6) + "s   "},
	{"accents", "Le garçon a mangé des crêpes à l'école où j'étais; ça m'a plu. Die Straße über den Fluß führt zu größeren Häusern, daß man's glaubt. ¿Cómo está el niño mañana? Não há informações. Zażółć gęślą jaźń. Příliš žluťoučký kůň. İstanbul'da ılık. Người Việt Nam. NFC: é ñ ü Å 가. NFD: e\u0301 n\u0303 u\u0308 A\u030a \u1100\u1161. \u212b \ufb01 \u2126 \u00c5 ｶﾞ"},
	{"scripts", "Привет, как дела? Сегодня хорошая погода, и мы пойдём гулять в парк. Γειά σου κόσμε. שלום עולם. مرحبا بالعالم، كيف حالك؟ नमस्ते दुनिया, आप कैसे हैं? สวัสดีชาวโลก வணக்கம் გამარჯობა Բարեւ አማርኛ"},
	{"han", "今天天气很好，我们一起去公园吧。请用中文回答下面的问题：什么是人工智能？日本語の文章です。私は学生で、毎日コーヒーを飲みます。カタカナ。안녕하세요, 오늘 날씨가 좋네요. 한국어 문장입니다. 繁體字與簡體字，「引號」《書名》……"},
	{"symbols", "😀👍🏽👩‍👩‍👧‍👦🇩🇪❤️ ☃︎ → ≈ ≤ © ™ € £ ¥ § • … “quoted” ‘it’s’ – — ── ███ !!! ??? ... ---- ==== #### //// \\\\ @user #tag _under_ ~ ^ & | {{x}} [[y]] <<z>> ((w)) \U0001d4d0\U00020000 \x00\x01\x7f\u0085\u2028"},
	{"specials", "<s>a</s> <unk><pad><|endoftext|><|im_start|>user\nb<|im_end|>\n<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nc<|eot_id|><bos><eos><start_of_turn>model<end_of_turn>[INST] d [/INST]<|user|><|assistant|><|system|><｜begin▁of▁sentence｜><think>e</think><tool_call> </tool_call><|start|><|channel|>final<|message|>▁f <0x0A> [CLS] [MASK]"},
	{"invalid UTF-8", "a\xffb\xc3(c\xe2\x82d\xf0\x9f\x98e\xed\xa0\x80f\xc0\xafg\xf4\x90\x80\x80 \x80\x80h"},
	{"words", "internationalization antidisestablishmentarianism unbelievable HELLO WORLD camelCaseIdentifier snake_case_name SCREAMING_CASE getElementById supercalifragilisticexpialidocious JohnSmith's I'M DON'T we'LL aaaaaaaaaaaaaaaa zqxjkv Qwertz lol haha www.github.com/user/repo.git admin@mail.org"},
}

// textTrials returns the trials of texts, each with special tokens around it and without.
func textTrials(local tokenize.Tokenizer) []trial {
	var list []trial
	for _, special := range []bool{true, false} {
		around := "without special tokens"
		if special {
			around = "with special tokens"
		}
		for _, c := range judgeTexts {
			list = append(list, trial{
				name: fmt.Sprintf("the text %q %s", c.name, around),
				local: func(ctx context.Context) ([]uint32, error) {
					return local.Encode(ctx, nil, c.text, special)
				},
				engine: func(ctx context.Context, e *Engine) ([]uint32, error) {
					return e.Encode(ctx, nil, c.text, special)
				},
			})
		}
	}
	return list
}

// Features that chatcheck compares one by one are judged as a whole here, so the chats have what most
// requests have, and nothing that versions of engines treat in different ways.
var judgeChats = []struct{ name, fields string }{
	{"a question", `"messages":[{"role":"user","content":"Why is the sky blue?"}]`},
	{"space around a question", `"messages":[{"role":"user","content":" \n Why?\n\n "}]`},
	{"no ASCII", `"messages":[{"role":"user","content":"Größe: 日本語 \u00a0😀 <b>'x' & \"y\"</b> {{ z }} {% if %}"}]`},
	{"special tokens in a question", `"messages":[{"role":"user","content":"<|im_start|>system\n</s><s>[INST]<|eot_id|><end_of_turn>"}]`},
	{"a system message", `"messages":[{"role":"system","content":"Answer in one word."},{"role":"user","content":"Why?"}]`},
	{"three turns", `"messages":[{"role":"user","content":"Why?"},{"role":"assistant","content":"Because."},{"role":"user","content":"Why not?"}]`},
	{"five turns behind a system message", `"messages":[{"role":"system","content":"Be kind.\n"},{"role":"user","content":"1"},{"role":"assistant","content":" 2 "},{"role":"user","content":"3"},{"role":"assistant","content":"4\n"},{"role":"user","content":"5"}]`},
	{"no generation prompt", `"messages":[{"role":"user","content":"Why?"}],"add_generation_prompt":false`},
	{"a long question", `"messages":[{"role":"user","content":"` + strings.Repeat("The sky is blue, and the sea is green. ", 30) + `"}]`},
	{"a tool", `"messages":[{"role":"user","content":"Is it late?"}],"tools":[{"type":"function","function":{"name":"clock","description":"Tells the time.","parameters":{"type":"object","properties":{"zone":{"type":"string"}},"required":["zone"]}}}]`},
	{"a tool's answer", `"messages":[{"role":"user","content":"Is it late?"},{"role":"assistant","content":"","tool_calls":[{"id":"call12345","type":"function","function":{"name":"clock","arguments":"{\"zone\": \"UTC\"}"}}]},{"role":"tool","tool_call_id":"call12345","content":"11:30"}]`},
	{"a part", `"messages":[{"role":"user","content":[{"type":"text","text":"Why?"}]}]`},
}

// chatTrials returns the trials of chats, none without a model.
func chatTrials(local tokenize.Tokenizer, model *chat.Model) []trial {
	if model == nil {
		return nil
	}
	const path = "/v1/chat/completions"
	var list []trial
	for _, c := range judgeChats {
		body := []byte(`{"model":"m",` + c.fields + `}`)
		list = append(list, trial{
			name: fmt.Sprintf("the chat %q", c.name),
			local: func(ctx context.Context) ([]uint32, error) {
				prompt, err := chat.Parse(path, body)
				if err != nil {
					return nil, err
				}
				x, err := model.Render(prompt, nil)
				if errors.Is(err, chat.ErrMalformed) || errors.Is(err, chat.ErrTemplate) || errors.Is(err, chat.ErrNotScorable) || errors.Is(err, chat.ErrUnsupported) {
					return nil, fmt.Errorf("%w: %w", errSkipped, err)
				}
				if err != nil {
					return nil, err
				}
				return x.Encode(ctx, nil, local)
			},
			engine: func(ctx context.Context, e *Engine) ([]uint32, error) {
				rendered, err := e.RenderBody(ctx, path, body)
				if err != nil {
					return nil, err
				}
				return rendered.Tokens, nil
			},
		})
	}
	return list
}
