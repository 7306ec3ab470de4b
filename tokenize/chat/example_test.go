package chat_test

import (
	"errors"
	"fmt"

	"github.com/kvindex/kvindex/tokenize/chat"
)

func Example() {
	template := `{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}` +
		`{% if add_generation_prompt %}<|assistant|>{% endif %}`
	// From a model's folder, it is chat.Load("/models/llama-3", chat.Options{}).
	model, err := chat.New(template, map[string]string{"bos_token": "<s>"}, chat.Options{})
	if err != nil {
		panic(err)
	}
	prompt, err := chat.Parse("", []byte(`{"model": "m", "cache_salt": "a user's", "messages": [
		{"role": "user", "content": "Hi"},
		{"role": "assistant", "content": "Hello!"},
		{"role": "user", "content": [{"type": "text", "text": "A joke,"}, {"type": "text", "text": "please"}]}]}`))
	if err != nil {
		panic(err)
	}
	rendering, err := model.Render(prompt, nil)
	if err != nil {
		panic(err)
	}
	shared, err := rendering.Shared()
	if err != nil {
		panic(err)
	}
	fmt.Printf("%q\n", rendering.Text)
	fmt.Printf("%q was there a turn earlier\n", rendering.Text[:shared])
	// Output:
	// "<s><|user|>Hi<|assistant|>Hello!<|user|>A joke,\nplease<|assistant|>"
	// "<s><|user|>Hi<|assistant|>" was there a turn earlier
}

// A request whose text is not certain is rejected, with the field that is the reason.
func ExampleModel_Render() {
	model, err := chat.New("{{ messages[0].content }}", nil, chat.Options{})
	if err != nil {
		panic(err)
	}
	prompt, err := chat.Parse("", []byte(`{"messages": [
		{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}]}]}`))
	if err != nil {
		panic(err)
	}
	_, err = model.Render(prompt, nil)
	fmt.Println(err)
	fmt.Println(errors.Is(err, chat.ErrNotScorable))
	// Output:
	// not scorable: messages[0].content[0]: image: the engine's hash of it and the number of its tokens are needed
	// true
}
