package chat

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/kvindex/kvindex/internal/jinja/python"
)

// specialNames are the special tokens that a template can name.
var specialNames = []string{"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}

// Load reads the templates and the special tokens of a model from its folder, as engines do
// through transformers. The templates are those in chat_template.jinja and in the folder
// additional_chat_templates. Without these, they are in tokenizer_config.json: chat_template
// is one, or a list with names. For a model with a processor, chat_template.json counts too.
//
// By config.json, if there is one, Load finds models whose chats the engine renders by a program
// and not from a template. It has those of gpt-oss (harmony), with vLLM from 0.14,
// DeepSeek-V3.2, from 0.18, DeepSeek-V4, from 0.28, DeepSeek-V4.1, in main of autumn 2026, and of
// Mistral with a tekken.json, from 0.27.1. It refuses the others with ErrUnsupported. A model
// without a template is ErrNoTemplate.
func Load(dir string, o Options) (*Model, error) {
	m := new(Model)
	err := m.configure(o)
	if err == nil {
		err = m.load(dir)
	}
	if errors.Is(err, ErrMalformed) || errors.Is(err, ErrNotScorable) {
		err = unsupported("%w", err)
	}
	if err != nil {
		return nil, fmt.Errorf("chat: %s: %w", dir, err)
	}
	return m, nil
}

func (m *Model) load(dir string) error {
	info, err := os.Stat(dir)
	if err == nil && !info.IsDir() {
		err = of(ErrNoTemplate, "it is a file, not the folder of a model")
	}
	if err != nil {
		return err
	}
	model, err := readObject(dir, "config.json")
	if err != nil {
		return err
	}
	if m.program, err = m.programOf(dir, model); err != nil || m.program != nil {
		return err
	}
	if err := m.encodingOf(model); err != nil || m.encoding != nil {
		return err
	}
	if err := refuseModel(dir, model, m.options.TokenizerMode == "hf"); err != nil {
		return err
	}
	m.media = mediaOf(model)
	tokenizer, err := readObject(dir, "tokenizer_config.json")
	if err != nil {
		return err
	}
	m.added = addedTokens(tokenizer)
	if optional(tokenizer, "auto_map") != nil {
		return unsupported("a tokenizer that is Python code of the repository (auto_map)")
	}
	sources, err := m.readTemplates(dir, tokenizer)
	if err != nil {
		return err
	}
	if err := m.readProcessor(dir, sources); err != nil {
		return err
	}
	if len(sources) == 0 && m.given == nil {
		return of(ErrNoTemplate, "neither chat_template.jinja nor a chat_template in tokenizer_config.json")
	}
	texts := []string{m.options.Template}
	for _, s := range sources {
		texts = append(texts, s)
	}
	if err := m.readSpecial(dir, tokenizer, strings.Join(texts, "\n")); err != nil {
		return err
	}
	return m.name(sources)
}

// readTemplates returns the templates of the tokenizer by their names. Files of templates
// replace all those of the config (transformers, tokenization_utils_base.py,
// _from_pretrained).
func (m *Model) readTemplates(dir string, config *python.Dict) (map[string]string, error) {
	sources := map[string]string{}
	source, ok, err := read(dir, "chat_template.jinja")
	if err != nil {
		return nil, err
	}
	if ok {
		sources[defaultTemplate] = source
	}
	if err := readAdditional(dir, sources); err != nil {
		return nil, err
	}
	if len(sources) > 0 {
		_, m.single = sources[defaultTemplate]
		m.single = m.single && len(sources) == 1
		return sources, nil
	}
	switch v := optional(config, "chat_template").(type) {
	case nil:
	case string:
		m.single = true
		sources[defaultTemplate] = v
	case *python.List:
		err = addNamed(sources, v)
	case *python.Dict:
		err = addTemplates(sources, v)
	default:
		err = wrongType("chat_template", v, "a string or an array")
	}
	return sources, within(err, "tokenizer_config.json")
}

const additionalTemplates = "additional_chat_templates"

// maxTemplates bounds the templates of a model.
const maxTemplates = 64

func readAdditional(dir string, sources map[string]string) error {
	entries, err := os.ReadDir(filepath.Join(dir, additionalTemplates))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		name, ok := strings.CutSuffix(strings.TrimSuffix(e.Name(), ".gz"), ".jinja")
		if !ok {
			continue
		}
		if len(sources) == maxTemplates {
			return unsupported("more than %d chat templates", maxTemplates)
		}
		source, _, err := read(filepath.Join(dir, additionalTemplates), name+".jinja")
		if err != nil {
			return err
		}
		sources[name] = source
	}
	return err
}

// addNamed adds the templates of a list of objects with a name and a template.
func addNamed(sources map[string]string, list *python.List) error {
	for i, item := range list.Items {
		if len(sources) == maxTemplates {
			return unsupported("more than %d chat templates", maxTemplates)
		}
		o, ok := item.(*python.Dict)
		if !ok {
			return within(wrongType("", item, "an object"), "chat_template[%d]", i)
		}
		name, err := text(o, "name")
		if err == nil {
			sources[name], err = text(o, "template")
		}
		if err != nil {
			return within(err, "chat_template[%d]", i)
		}
	}
	return nil
}

func addTemplates(sources map[string]string, o *python.Dict) error {
	if o.Len() > maxTemplates {
		return unsupported("more than %d chat templates", maxTemplates)
	}
	for i := range o.Len() {
		key, v := o.At(i)
		s, ok := v.(string)
		if !ok {
			return within(wrongType(key.(string), v, "a string"), "chat_template")
		}
		sources[key.(string)] = s
	}
	return nil
}

// readProcessor reads the template of a multimodal model's processor, which goes before the
// tokenizer's for chats without tools (vLLM, renderers/hf.py, resolve_chat_template). If it
// comes from the same files, the two are the same.
func (m *Model) readProcessor(dir string, sources map[string]string) error {
	source, ok, err := processorTemplate(dir)
	if err != nil {
		return err
	}
	if !ok {
		processor, err := readable(dir, "processor_config.json", "preprocessor_config.json")
		if err == nil && processor && len(sources) > 1 {
			err = unsupported("a model with several chat templates and a processor")
		}
		return err
	}
	if sources[defaultTemplate] == source && m.single {
		return nil
	}
	if len(sources) == 0 {
		m.single = true
		sources[defaultTemplate] = source
		return nil
	}
	own, err := readable(dir, "chat_template.jinja")
	if err == nil && own {
		err = unsupported("a chat_template.json that differs from chat_template.jinja")
	}
	if err != nil {
		return err
	}
	processor, err := readable(dir, "processor_config.json", "preprocessor_config.json")
	if err == nil && !processor {
		err = unsupported("a chat_template.json that differs from the tokenizer's, and no processor")
	}
	if err != nil {
		return err
	}
	m.processor, err = m.compile(source)
	return err
}

func processorTemplate(dir string) (source string, ok bool, err error) {
	for _, name := range []string{"chat_template.json", "processor_config.json"} {
		o, err := readObject(dir, name)
		if err != nil {
			return "", false, err
		}
		switch v := optional(o, "chat_template").(type) {
		case nil:
		case string:
			return v, true, nil
		default:
			return "", false, within(wrongType("chat_template", v, "a string"), "%s", name)
		}
	}
	return "", false, nil
}

// addedTokens returns the tokens of added_tokens_decoder, the longest first.
func addedTokens(config *python.Dict) []string {
	decoder, _ := optional(config, "added_tokens_decoder").(*python.Dict)
	if decoder == nil {
		return nil
	}
	var list []string
	for i := range decoder.Len() {
		_, v := decoder.At(i)
		if o, ok := v.(*python.Dict); ok {
			if s, _ := optional(o, "content").(string); s != "" {
				list = append(list, s)
			}
		}
	}
	slices.SortFunc(list, longestFirst)
	return list
}

func longestFirst(a, b string) int { return len(b) - len(a) }

// plainTokenizers are the classes without special tokens of their own.
var plainTokenizers = []string{"PreTrainedTokenizerFast", "PreTrainedTokenizer", "TokenizersBackend"}

// readSpecial reads the special tokens that have a name, and refuses templates that read a
// missing one: the tokenizer's class may have its own.
func (m *Model) readSpecial(dir string, config *python.Dict, templates string) error {
	if optional(config, "added_tokens_decoder") == nil {
		if older, err := readable(dir, "special_tokens_map.json"); err != nil || older && strings.Contains(templates, "_token") {
			if err == nil {
				err = unsupported("a tokenizer_config.json without added_tokens_decoder beside special_tokens_map.json")
			}
			return err
		}
	}
	class, _ := optional(config, "tokenizer_class").(string)
	for _, name := range specialNames {
		v, ok := config.Lookup(name)
		if !ok && !slices.Contains(plainTokenizers, class) && strings.Contains(templates, name) {
			return unsupported("a chat template that reads %s, which tokenizer_config.json does not have for class %.60q", name, class)
		}
		content, err := tokenContent(name, v)
		if err != nil {
			return within(err, "tokenizer_config.json")
		}
		if content != "" {
			m.special = append(m.special, specialToken{name, content})
		}
	}
	return m.readExtra(config)
}

// readExtra reads the special tokens with names of the model's own. A list has no names, and
// no template sees it.
func (m *Model) readExtra(config *python.Dict) error {
	for _, field := range []string{"extra_special_tokens", "model_specific_special_tokens"} {
		extra, ok := optional(config, field).(*python.Dict)
		if !ok {
			continue
		}
		for i := range extra.Len() {
			key, v := extra.At(i)
			content, err := tokenContent(key.(string), v)
			if err != nil {
				return within(err, "%s", field)
			}
			m.special = append(m.special, specialToken{key.(string), content})
		}
	}
	return nil
}

// tokenContent reads a token that is a string, or an object with a content.
func tokenContent(name string, v python.Value) (string, error) {
	switch v := v.(type) {
	case nil:
		return "", nil
	case string:
		return v, nil
	case *python.Dict:
		s, err := text(v, "content")
		return s, within(err, "%s", name)
	}
	return "", wrongType(name, v, "a string or an object")
}

// maxFile bounds the files of a model that are read here, in bytes.
const maxFile = 16 << 20

// readable reports whether one of the files is there.
func readable(dir string, names ...string) (bool, error) {
	for _, name := range names {
		if path, err := find(dir, name); err != nil || path != "" {
			return err == nil, err
		}
	}
	return false, nil
}

// find returns the path of a file, or of it with .gz; "" if there is none.
func find(dir, name string) (string, error) {
	for _, ext := range []string{"", ".gz"} {
		path := filepath.Join(dir, name+ext)
		info, err := os.Lstat(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil && info.Mode()&fs.ModeSymlink != 0 {
			info, err = os.Stat(path)
		}
		if err == nil && !info.Mode().IsRegular() {
			err = fmt.Errorf("%s is not a file: %w", path, fs.ErrInvalid)
		}
		return path, err
	}
	return "", nil
}

// read returns the content of a file, and whether it is there.
func read(dir, name string) (content string, ok bool, err error) {
	return readUpTo(dir, name, maxFile)
}

func readUpTo(dir, name string, most int64) (content string, ok bool, err error) {
	path, err := find(dir, name)
	if err != nil || path == "" {
		return "", false, err
	}
	f, err := os.Open(path)
	if err != nil {
		return "", false, err
	}
	defer f.Close()
	var r io.Reader = f
	if strings.HasSuffix(path, ".gz") {
		if r, err = gzip.NewReader(f); err != nil {
			return "", false, fmt.Errorf("%s: %w", path, err)
		}
	}
	b, err := io.ReadAll(io.LimitReader(r, most+1))
	switch {
	case err != nil:
		return "", false, fmt.Errorf("%s: %w", path, err)
	case int64(len(b)) > most:
		return "", false, unsupported("%s is longer than %d bytes", path, most)
	case strings.HasPrefix(string(b), "version https://git-lfs.github.com/spec/"):
		return "", false, unsupported("%s is a git LFS pointer, not the file: git lfs pull fetches it", path)
	case !utf8.Valid(b):
		return "", false, unsupported("%s is not UTF-8", path)
	}
	return string(b), true, nil
}

// readObject reads a file that is a JSON object; a missing file is an empty one.
func readObject(dir, name string) (*python.Dict, error) {
	content, ok, err := read(dir, name)
	if err != nil || !ok {
		return new(python.Dict), err
	}
	v, err := decode(content)
	if err != nil {
		return nil, unsupported("%s: %w", name, err)
	}
	o, ok := v.(*python.Dict)
	if !ok {
		return nil, wrongType(name, v, "an object")
	}
	return o, nil
}
