// Package remote has running engines make tokens: for models whose tokenizer or chat template
// is not read here, and to check those that are.
//
//	engine := &remote.Engine{URLs: []string{"http://10.0.0.7:8000"}, Model: "llama-3"}
//	defer engine.Close()
//	x, err := kvindex.New(kvindex.WithModel("llama-3", kvindex.Model{Tokenizer: engine}))
//
// An [Engine] is a tokenize.Tokenizer and a chat.Renderer.
package remote
