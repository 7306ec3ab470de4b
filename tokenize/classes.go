package tokenize

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/kvindex/kvindex/internal/vllmversion"
)

// Transformers 4.57 reads a tokenizer.json as it is, for any class. Transformers 5 does so
// only for its class TokenizersBackend. Any other class takes the vocabulary, the merges and
// the post-processor from the file, and makes the rest itself (convert_to_native_format in
// tokenization_utils_tokenizers.py, and models/*/tokenization_*.py). The class depends on
// tokenizer_class of tokenizer_config.json and on model_type of config.json
// (AutoTokenizer.from_pretrained in models/auto/tokenization_auto.py):
//
//   - A type that is registered with TokenizersBackend has that class, for any config. Types
//     whose config is wrong are registered so.
//   - Types of Mistral have it, too, in the newest version. Before, they have the class
//     of the config.
//   - qwen2 has Qwen2Tokenizer in the newest version, for any config.
//   - Any other type has the class of the config.
//
// There are names of repositories that have TokenizersBackend, too. A folder has no
// such name: an engine that is offline replaces the name by the path of the snapshot.
//
// The rule was read in four states: of 5.5 (April 2026), of 5.8 (May 2026), of July 2026,
// and of the main of autumn 2026, the newest here. 5.0 to 5.2 have another rule; vLLM
// allows none of 5.0 to 5.5.0.

// transformers5 is the first release of vLLM that comes with Transformers 5, of 5.5.1 or
// later (requirements/common.txt; pull request 30566).
const transformers5 vllmversion.Version = 19_001

// A fileRule lists the states of Transformers 5 that read the tokenizer.json of a type of
// model as it is.
type fileRule uint8

const (
	never  fileRule = iota
	always          // in all that were read
	later           // in the newest, and not in all before
	once            // not in the newest
)

// standings has the types that are not never.
var standings = func() map[string]fileRule {
	m := map[string]fileRule{"internvl_chat": once, "vision-encoder-decoder": once}
	for s, types := range map[fileRule]string{
		always: `arctic chameleon chatlm deepseek_v2 deepseek_v3 deepseek_vl deepseek_vl_hybrid deepseek_vl_v2 fuyu
			glm glm4 glm4_moe glm4_moe_lite glm4v glm4v_moe glm_image glmasr got_ocr2 h2ovl_chat hyperclovax_vlm
			internlm2 jamba janus llava llava_next minicpmv minimax_m2 modernbert molmo molmo2 nemotron nvfp4
			opencua openvla phi3 phi3_v phimoe step3p5 vipllava`,
		later: `EvollaModel aria bigbird_pegasus camembertv2-base canary cohere_asr deepseek_ocr deepseek_ocr2 deepseek_v32
			deepseek_v4 ernie4_5 ernie4_5_moe flex_olmo gpt_bigcode granite granitemoe granitemoehybrid
			granitemoeshared hyperclovax kimi_k25 kimi_linear kosmos-2 mimo_v2_flash minicpm3 minicpmv4_6 ministral
			ministral3 mistral mistral3 mixtral modernbert-decoder nystromformer olmo2 olmo3 olmo_hybrid paddleocr_vl pegasus_x persimmon pix2struct
			pixtral smolvlm stablelm step3_vl umt5 voxtral voxtral_realtime xlm-roberta-xl`,
	} {
		for _, name := range strings.Fields(types) {
			m[name] = s
		}
	}
	return m
}()

// backendClasses are those of plainClasses that are names of TokenizersBackend.
var backendClasses = []string{"PreTrainedTokenizer", "TokenizersBackend", "BloomTokenizer"}

// className returns the class of Transformers 5 that reads the file, "" for
// TokenizersBackend.
func className(class, modelType string, newest bool) string {
	s := standings[modelType]
	switch {
	case s == always, s == later && newest, s == once && !newest:
		return ""
	case modelType == "qwen2" && newest:
		return "Qwen2Tokenizer"
	case slices.Contains(backendClasses, class):
		return ""
	}
	return class
}

// classNames returns the classes that the engine may have, "" for one that reads the file as
// it is. It is unknown with which releases of vLLM the states of the rule between 5.5 and the
// newest came.
func (c *config) classNames() []string {
	if c.engine < transformers5 {
		return []string{""}
	}
	newest := className(c.class, c.modelType, true)
	if first := className(c.class, c.modelType, false); c.engine != vllmversion.Main && first != newest {
		return []string{first, newest}
	}
	return []string{newest}
}

// A pipeline is the part before the model in a tokenizer.json, and the settings of the model.
type pipeline struct {
	normalizer, preTokenizer string // JSON
	model                    map[string]string
}

// The model that the classes of byte-level files make, and that of SentencePiece's.
var (
	byteModel  = map[string]string{"fuse_unk": "false", "byte_fallback": "false"}
	pieceModel = map[string]string{"fuse_unk": "true", "byte_fallback": "true"}
)

// pipelineOf returns the pipeline of a class of Transformers 5, nil for "".
func (c *config) pipelineOf(class string) *pipeline {
	byteLevel := func(prefix, regex bool) string {
		return fmt.Sprintf(`{"type": "ByteLevel", "add_prefix_space": %t, "trim_offsets": true, "use_regex": %t}`, prefix, regex)
	}
	words := byteLevel(c.addPrefixSpace.or(false), true)
	const nfc = `{"type": "NFC"}`
	switch class {
	case "GPT2Tokenizer", "CodeGenTokenizer", "RobertaTokenizer", "BartTokenizer", "WhisperTokenizer":
		return &pipeline{"null", words, byteModel}
	case "BlenderbotTokenizer":
		return &pipeline{"null", byteLevel(c.addPrefixSpace.or(true), true), byteModel}
	case "GPTNeoXTokenizer":
		return &pipeline{nfc, words, byteModel}
	case "CohereTokenizer":
		return &pipeline{nfc, sequence(`{"type": "Digits", "individual_digits": true}`, words), byteModel}
	case "Qwen2Tokenizer":
		split := `{"type": "Split", "pattern": {"Regex": ` + quoted(qwen2Pattern) + `}, "behavior": "Isolated", "invert": false}`
		return &pipeline{nfc, sequence(split, byteLevel(c.addPrefixSpace.or(false), false)), byteModel}
	case "GemmaTokenizer":
		return &pipeline{
			`{"type": "Replace", "pattern": {"String": " "}, "content": "▁"}`,
			`{"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": false}`,
			c.withUnknown(pieceModel),
		}
	case "LlamaTokenizer":
		scheme := "first"
		if c.legacy.or(false) {
			scheme = "always"
		}
		return &pipeline{"null", metaspaceOf(scheme), pieceModel}
	case "CodeLlamaTokenizer":
		scheme := "first"
		if !c.addPrefixSpace.or(true) {
			scheme = "never"
		}
		return &pipeline{"null", metaspaceOf(scheme), c.withUnknown(pieceModel)}
	}
	return nil
}

// Classes that change ids beyond their pipeline: they make a post-processor, or add tokens
// that the config may not name. If the file has another pipeline than they, it is an error.
var otherClasses = []string{"RobertaTokenizer", "BartTokenizer", "WhisperTokenizer", "BlenderbotTokenizer", "CodeLlamaTokenizer"}

func sequence(steps ...string) string {
	return `{"type": "Sequence", "pretokenizers": [` + strings.Join(steps, ", ") + `]}`
}

func metaspaceOf(scheme string) string {
	return `{"type": "Metaspace", "replacement": "▁", "prepend_scheme": "` + scheme + `", "split": false}`
}

// quoted returns s in JSON.
func quoted(s string) string {
	b, _ := json.Marshal(s) // a string has no error
	return string(b)
}

// withUnknown returns model with the config's unk_token.
func (c *config) withUnknown(model map[string]string) map[string]string {
	unknown := c.unk
	if unknown == "" {
		unknown = "<unk>"
	}
	return map[string]string{
		"fuse_unk": model["fuse_unk"], "byte_fallback": model["byte_fallback"], "unk_token": quoted(unknown),
	}
}

// modelFields are the settings of a pipeline's model, and their defaults.
var modelFields = map[string]string{
	"unk_token": "null", "fuse_unk": "false", "byte_fallback": "false", "ignore_merges": "false",
}

func (p *pipeline) setting(name string) string {
	if v, ok := p.model[name]; ok {
		return v
	}
	return modelFields[name]
}

// pipelineIn returns that of a tokenizer.json.
func pipelineIn(file object, m *modelFile) *pipeline {
	p := &pipeline{string(file.values["normalizer"]), string(file.values["pre_tokenizer"]), map[string]string{}}
	for name := range modelFields {
		if !m.absent(name) {
			p.model[name] = string(m.values[name])
		}
	}
	if unknown, ok := p.model["unk_token"]; ok && unknown[0] == '"' {
		p.model["unk_token"] = quoted(string(unquote([]byte(unknown)))) // as withUnknown writes it
	}
	return p
}

// equal reports whether p and q make the same ids. It may report false where they do.
func (p *pipeline) equal(q *pipeline) bool {
	for name := range modelFields {
		if p.setting(name) != q.setting(name) {
			return false
		}
	}
	return reflect.DeepEqual(steps(p.normalizer), steps(q.normalizer)) &&
		reflect.DeepEqual(steps(p.preTokenizer), steps(q.preTokenizer))
}

// steps returns the components of a section, those of sequences one by one, without those that
// do not affect ids.
func steps(raw string) []any {
	var o any
	if json.Unmarshal([]byte(raw), &o) != nil {
		return nil
	}
	return flatten(nil, o)
}

func flatten(dst []any, o any) []any {
	m, ok := o.(map[string]any)
	if !ok {
		if o == nil {
			return dst
		}
		return append(dst, o)
	}
	for _, name := range []string{"normalizers", "pretokenizers"} {
		if items, ok := m[name].([]any); ok && m["type"] == "Sequence" {
			for _, item := range items {
				dst = flatten(dst, item)
			}
			return dst
		}
	}
	delete(m, "trim_offsets")
	if _, ok := m["use_regex"]; !ok && m["type"] == "ByteLevel" {
		m["use_regex"] = true
	}
	return append(dst, m)
}

// extends reports whether q's pre-tokenizer has all steps of p's, and more.
func (p *pipeline) extends(q *pipeline) bool {
	rest := steps(p.preTokenizer)
	for _, step := range steps(q.preTokenizer) {
		i := slices.IndexFunc(rest, func(s any) bool { return reflect.DeepEqual(s, step) })
		if i < 0 {
			return false
		}
		rest = slices.Delete(rest, i, i+1)
	}
	return len(rest) > 0
}

// kinds returns the types of the pre-tokenizer's steps.
func (p *pipeline) kinds() []string {
	var kinds []string
	for _, step := range steps(p.preTokenizer) {
		m, _ := step.(map[string]any)
		kind, _ := m["type"].(string)
		kinds = append(kinds, kind)
	}
	return kinds
}

func (p *pipeline) isByteLevel() bool { return slices.Contains(p.kinds(), "ByteLevel") }

// String names the pre-tokenizer, for errors.
func (p *pipeline) String() string {
	kinds := p.kinds()
	if kinds == nil {
		return "none"
	}
	return fmt.Sprintf("%.200s", strings.Join(kinds[:min(len(kinds), maxSteps)], ", "))
}

// build gives the file the pipeline that the engine makes.
func (c *config) build(file object, m *modelFile) error {
	given := pipelineIn(file, m)
	names := c.classNames()
	if c.noType && !c.guess(given, names) {
		return nil
	}
	var made *pipeline // of the first class that does not make what is given
	var class string
	same := true // whether all classes make the same
	for i, name := range names {
		p := c.pipelineOf(name)
		if p == nil || p.equal(given) {
			same = same && made == nil
			continue
		}
		same = same && (i == 0 || made != nil && made.equal(p))
		if made == nil {
			made, class = p, name
		}
	}
	if made == nil {
		return nil
	}
	has := given.String()
	if has == made.String() {
		has = "such a one with other settings, or another normalizer or model"
	}
	what := fmt.Sprintf("class %s and model_type %.60q, for which transformers 5 makes the pre-tokenizer %s where tokenizer.json has %s",
		class, c.modelType, made, has)
	switch {
	case !same:
		return unsupported("%s, in some of its releases and perhaps not in the engine's,", what)
	case made.isByteLevel() != given.isByteLevel():
		return unsupported("%s, a file of another kind,", what)
	case slices.Contains(otherClasses, class):
		return unsupported("%s,", what)
	}
	if err := c.keepsAdded(file); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	file.values["normalizer"], file.values["pre_tokenizer"] = []byte(made.normalizer), []byte(made.preTokenizer)
	for name := range modelFields {
		m.values[name] = []byte(made.setting(name))
	}
	return nil
}

// guess reports whether a class counts although there is no config.json, and so no type of the
// model. An engine does not serve such a folder. If the file has other steps than the class,
// then its type is one for which it is read as it is. If it has the class's own steps and
// more, it may be of another type, too.
func (c *config) guess(given *pipeline, names []string) bool {
	made := c.pipelineOf(names[len(names)-1])
	return made != nil && given.extends(made)
}

// keepsAdded refuses an added token that a class forgets: if there is
// added_tokens_decoder, it has those alone.
func (c *config) keepsAdded(file object) error {
	if c.added == nil || file.absent("added_tokens") {
		return nil
	}
	items, err := file.list("added_tokens", maxAdded)
	if err != nil {
		return err
	}
	kept := map[string]bool{}
	for _, t := range c.added {
		kept[t.content] = true
	}
	for _, item := range items {
		o, err := parseObject("added token", item)
		if err != nil {
			return err
		}
		if content, err := o.text("content"); err != nil || !kept[content] {
			return unsupported("added token %.60q, which tokenizer.json alone has,", content)
		}
	}
	return nil
}
