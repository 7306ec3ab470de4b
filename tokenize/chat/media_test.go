package chat_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/kvindex/kvindex/tokenize/chat"
)

const imageTemplate = "{% for m in messages %}{% for p in m.content %}{{ '[' + p.type + ']' if p.type == 'image' else p.text }}{% endfor %}{% endfor %}"

func imageModel(t *testing.T, config, template string) *chat.Model {
	t.Helper()
	m, err := chat.Load(folder(t, map[string]string{
		"config.json": config, "tokenizer_config.json": `{}`, "chat_template.jinja": template,
	}), chat.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestMedia(t *testing.T) {
	const image = `{"type":"image_url","image_url":{"url":"u"}}`
	body := `{"messages":[{"role":"user","content":[` + image + `,{"type":"text","text":"a"},` + image + `]}]}`
	media := []chat.Media{{Hash: "one", Length: 3}, {Hash: "two", Length: 1}}
	for _, config := range []string{
		`{"model_type":"qwen2_vl","image_token_id":7}`, `{"model_type":"qwen2_5_vl","image_token_id":7}`, `{"model_type":"qwen3_vl","image_token_id":7}`,
		`{"model_type":"llava","image_token_index":7,"vision_config":{"model_type":"clip_vision_model"}}`,
	} {
		x, err := imageModel(t, config, imageTemplate).Render(parse(t, body), media)
		if err != nil || x.Text != "[image]a[image]" {
			t.Fatalf("%q, %v", text(x), err)
		}
		tokens, placed, err := x.Expand([]uint32{99}, []uint32{1, 7, 2, 3, 7, 4})
		if want := []uint32{99, 1, 7, 7, 7, 2, 3, 7, 4}; err != nil || !slices.Equal(tokens, want) {
			t.Errorf("%v, %v, want %v", tokens, err, want)
		}
		if want := []chat.Media{{"one", 1, 3}, {"two", 6, 1}}; !slices.Equal(placed, want) {
			t.Errorf("placed %v, want %v", placed, want)
		}
		for _, length := range []int{-1, 1 << 24, 1 << 30} {
			x, err := imageModel(t, config, imageTemplate).Render(parse(t, body), []chat.Media{{Hash: "one", Length: 1}, {Hash: "two", Length: length}})
			if err != nil {
				t.Fatal(err)
			}
			if got, _, err := x.Expand(nil, []uint32{1, 7, 2, 3, 7, 4}); !errors.Is(err, chat.ErrNotScorable) || len(got) != 0 {
				t.Errorf("%d tokens: %d, %v", length, len(got), err)
			}
		}
		for _, tokens := range [][]uint32{{1, 7, 2}, {7, 7, 7}, {1}} {
			if got, _, err := x.Expand([]uint32{99}, tokens); !errors.Is(err, chat.ErrNotScorable) || len(got) != 1 {
				t.Errorf("%v: %v, %v", tokens, got, err)
			}
		}
	}
	video := `{"messages":[{"role":"user","content":[{"type":"video_url","video_url":{"url":"u"}}]}]}`
	qwen := `{"model_type":"qwen2_vl","image_token_id":7}`
	for _, c := range []struct {
		name, config, template, body string
		media                        []chat.Media
		want                         string
	}{
		{"no hashes", qwen, imageTemplate, body, nil,
			"not scorable: messages[0].content[0]: image: the engine's hash of it and the number of its tokens are needed"},
		{"too few", qwen, imageTemplate, body, media[:1], "not scorable: 1 media, and the messages have 2"},
		{"too many", qwen, imageTemplate, body, append(slices.Clip(media), media[0]), "not scorable: 3 media, and the messages have 2"},
		{"none wanted", qwen, imageTemplate, `{` + hi + `}`, media, "not scorable: 2 media, and the messages have none"},
		{"a video", qwen, imageTemplate, video, media[:1],
			"not scorable: messages[0].content[0]: video: how the engine of this model places it is not known"},
		{"another model", `{"model_type":"gemma3","image_token_id":7}`, imageTemplate, body, media,
			"not scorable: messages[0].content[0]: image: how the engine of this model places it is not known"},
		{"pixtral", `{"model_type":"llava","image_token_index":7,"vision_config":{"model_type":"pixtral"}}`, imageTemplate, body, media,
			"not scorable: messages[0].content[0]: image: how the engine of this model places it is not known"},
		{"content as a string", qwen, "{{ messages[0].content }}", body, media,
			"not scorable: messages[0].content[0]: image: the template wants content as a string"},
		{"processor options", qwen, imageTemplate, body[:len(body)-1] + `,"mm_processor_kwargs":{"x":1}}`, media,
			"not scorable: messages[0].content[0]: image: with mm_processor_kwargs"},
		{"options of Responses", qwen, imageTemplate, `{"input":[{"role":"user","content":[{"type":"input_image","image_url":"u"}]}],"media_io_kwargs":{"image":{"x":1}}}`, media[:1],
			"not scorable: messages[0].content[0]: image: with media_io_kwargs"},
	} {
		path := "/v1/chat/completions"
		if strings.Contains(c.body, `"input":`) {
			path = "/v1/responses"
		}
		r, err := chat.Parse(path, []byte(c.body))
		if err == nil {
			_, err = imageModel(t, c.config, c.template).Render(r, c.media)
		}
		if err == nil || err.Error() != c.want {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	x, err := imageModel(t, qwen, imageTemplate).Render(parse(t, `{`+hi+`}`), nil)
	if err != nil {
		t.Fatal(err)
	}
	if tokens, placed, err := x.Expand(nil, []uint32{1, 7}); err != nil || !slices.Equal(tokens, []uint32{1, 7}) || placed != nil {
		t.Errorf("without media: %v, %v, %v", tokens, placed, err)
	}
}
