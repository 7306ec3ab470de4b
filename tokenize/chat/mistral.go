package chat

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/kvindex/kvindex/internal/jinja/builtins"
	"github.com/kvindex/kvindex/internal/jinja/python"
)

// A mistral is what mistral-common reads of a tekken.json beside the vocabulary (1.11.6 and
// 1.11.7, tokens/tokenizers/tekken.py, base.py and model_settings_builder.py).
type mistral struct {
	version int // of the tokenizer: 3, 7, 11, 13 or 15
	tokens  map[string]uint32
	thinks  bool           // there are tokens for thoughts
	efforts *mistralEffort // nil: an effort has no effect
}

// A mistralEffort has the values that reasoning_effort may have.
type mistralEffort struct {
	Values  []string
	Absent  bool `json:"accepts_none"`
	Default string
}

const tekkenName = "tekken.json"

// mistralTokens are the control tokens that a tokenizer must have, by the first version that
// needs them.
var mistralTokens = []struct {
	since int
	names string
}{
	{3, "<s> </s> [INST] [/INST] [AVAILABLE_TOOLS] [/AVAILABLE_TOOLS] [TOOL_RESULTS] [/TOOL_RESULTS] [TOOL_CALLS] [PREFIX] [SUFFIX]"},
	{7, "[SYSTEM_PROMPT] [/SYSTEM_PROMPT] [TOOL_CONTENT]"},
	{11, "[ARGS] [CALL_ID]"},
	{15, "[MODEL_SETTINGS] [/MODEL_SETTINGS]"},
}

// olderMistralTokens are the control tokens of a file that lists none, by their ids.
const olderMistralTokens = "<unk> <s> </s> [INST] [/INST] [AVAILABLE_TOOLS] [/AVAILABLE_TOOLS] [TOOL_RESULTS] [/TOOL_RESULTS] [TOOL_CALLS] " +
	"[IMG] <pad> [IMG_BREAK] [IMG_END] [PREFIX] [MIDDLE] [SUFFIX] [SYSTEM_PROMPT] [/SYSTEM_PROMPT] [TOOL_CONTENT]"

// usesMistral reports whether the engine reads chats of a folder by mistral-common and a
// tekken.json. vLLM does so by default if there are weights with the names of Mistral, which need
// not be here (tokenizers/registry.py, resolve_tokenizer_args).
func (m *Model) usesMistral(dir string) (bool, error) {
	mode := m.options.TokenizerMode
	if mode != "" && mode != "auto" && mode != "hf" && mode != "mistral" {
		return false, nil
	}
	tekken, err := readable(dir, tekkenName)
	if err != nil {
		return false, err
	}
	if !tekken {
		if files, _ := fs.Glob(os.DirFS(dir), "tokenizer.model.v*"); len(files) > 0 && mode != "hf" {
			return false, elsewhere("mistral-common's with SentencePiece, as " + files[0] + " is there")
		}
		if mode == "mistral" {
			err = unsupported("the tokenizer mode mistral without a %s", tekkenName)
		}
		return false, err
	}
	other, err := readable(dir, "tokenizer.json")
	switch {
	case err != nil:
	case mode == "hf" && !other:
		err = unsupported("the tokenizer mode hf without a tokenizer.json: in a text, %s has no control tokens", tekkenName)
	case mode == "hf":
		return false, nil
	case mode != "mistral" && other:
		err = unsupported("%s beside tokenizer.json: the engine's --tokenizer-mode or the names of its weights decide between them: set the TokenizerMode to mistral or hf", tekkenName)
	case !m.engine.does(encodesMistral):
		err = unsupported("mistral-common's chats of vLLM before 0.27.1")
	case m.kwargs != nil:
		err = unsupported("--default-chat-template-kwargs with mistral-common")
	}
	return err == nil, err
}

// maxTekken bounds a tekken.json, in bytes.
const maxTekken = 128 << 20

func readMistral(dir string) (*mistral, error) {
	content, _, err := readUpTo(dir, tekkenName, maxTekken)
	if err != nil {
		return nil, err
	}
	var file struct {
		Config struct {
			Version string
			Special uint32 `json:"default_num_special_tokens"`
		}
		Tokens []struct {
			Rank uint32
			Name string `json:"token_str"`
		} `json:"special_tokens"`
		Settings *struct {
			Effort *mistralEffort `json:"reasoning_effort"`
		} `json:"model_settings_builder"`
	}
	if err := json.Unmarshal([]byte(content), &file); err != nil {
		return nil, unsupported("%s: %w", tekkenName, err)
	}
	m := &mistral{version: map[string]int{"v3": 3, "v7": 7, "v11": 11, "v13": 13, "v15": 15}[file.Config.Version], tokens: make(map[string]uint32)}
	if m.version == 0 {
		return nil, unsupported("%s: the tokenizer version %.60q, which is none of v3, v7, v11, v13 and v15", tekkenName, file.Config.Version)
	}
	for _, t := range file.Tokens {
		if _, twice := m.tokens[t.Name]; twice || t.Rank >= file.Config.Special {
			return nil, unsupported("%s: the special token %.60q twice, or with a rank that is none of %d", tekkenName, t.Name, file.Config.Special)
		}
		m.tokens[t.Name] = t.Rank
	}
	if file.Tokens == nil && m.version <= 7 {
		for i, name := range strings.Fields(olderMistralTokens) {
			m.tokens[name] = uint32(i)
		}
	}
	for _, t := range mistralTokens {
		for _, name := range strings.Fields(t.names) {
			if _, ok := m.tokens[name]; !ok && m.version >= t.since {
				return nil, unsupported("%s of version %s without %s", tekkenName, file.Config.Version, name)
			}
		}
	}
	_, begins := m.tokens["[THINK]"]
	_, ends := m.tokens["[/THINK]"]
	m.thinks = m.version >= 13 && begins && ends
	if (file.Settings != nil) != (m.version >= 15) {
		return nil, unsupported("%s of version %s with or without a model_settings_builder", tekkenName, file.Config.Version)
	}
	if file.Settings != nil {
		m.efforts = file.Settings.Effort
	}
	return m, nil
}

// A mistralMessage is one that mistral-common reads, or several of one role that it joins.
type mistralMessage struct {
	role   string
	chunks []mistralChunk
	bare   bool // the content is a string, or nothing
	calls  []mistralCall
	id     string // of the call that a tool answers
}

type mistralChunk struct {
	text           string
	thinking, open bool
}

type mistralCall struct {
	id, name  string
	arguments python.Value
}

// renderMistral renders a chat as vLLM does with mistral-common: vLLM 0.27.1 to 0.31 and main of
// autumn 2026 (renderers/online_renderer.py, renderers/mistral.py and tokenizers/mistral.py),
// transformers 5 (tokenization_mistral_common.py, apply_chat_template) and mistral-common 1.11.6
// and 1.11.7 (protocol/instruct/validator.py and normalize.py, tokens/tokenizers/instruct.py).
// The parameters of a tool are not checked, while the engine refuses any that are no JSON schema.
func renderMistral(m *Model, c *conversation) (string, []textPiece, error) {
	if c.template != "" || c.kwargs != nil {
		return "", nil, badField("chat_template", "the engine takes neither it nor chat_template_kwargs for this model")
	}
	effort, err := m.mistralEffort(c)
	if err != nil {
		return "", nil, err
	}
	tools, err := m.mistralTools(c)
	if err != nil {
		return "", nil, err
	}
	messages := make([]mistralMessage, len(c.messages))
	for i := range c.messages {
		if err := messages[i].read(m, &c.messages[i]); err != nil {
			return "", nil, within(err, "messages[%d]", i)
		}
	}
	if err := m.mistral.check(messages, c.continueFinal); err != nil {
		return "", nil, err
	}
	size := 1<<10 + len(tools)
	for i := range c.messages {
		size += c.messages[i].size() + 1<<6
	}
	w := mistralWriter{mistral: m.mistral, text: make([]byte, 0, size), pieces: make([]textPiece, 0, 4*len(messages)+8)}
	w.tools, w.effort = tools, effort
	if err := w.write(m.mistral.join(messages), c.continueFinal); err != nil {
		return "", nil, err
	}
	return string(w.text), w.pieces, nil
}

// mistralEffort returns the effort that goes into the chat, "" without.
func (m *Model) mistralEffort(c *conversation) (string, error) {
	const name = "reasoning_effort"
	effort, ok := c.effort.(string)
	switch e := m.mistral.efforts; {
	case !ok && c.effort != nil:
		return "", wrongType(name, c.effort, "a string")
	case ok && effort != "none" && effort != "high":
		return "", badField(name, "%.60q is neither none nor high", effort)
	case e == nil:
		return "", nil
	case !ok && !e.Absent:
		return "", badField(name, "missing")
	case !ok:
		return e.Default, nil
	case !slices.Contains(e.Values, effort):
		return "", badField(name, "%q is none of this model", effort)
	}
	return effort, nil
}

// mistralTools returns the tools as they are written, "" without.
func (m *Model) mistralTools(c *conversation) (string, error) {
	tools, err := m.tools(c)
	if err != nil || tools == nil || len(tools.Items) == 0 {
		return "", err
	}
	list := &python.List{Items: make([]python.Value, len(c.tools))}
	for i, t := range c.tools {
		if !mistralName(t.name) {
			return "", within(badField("function.name", "%.80q, which mistral-common refuses", t.name), "tools[%d]", i)
		}
		function, tool := new(python.Dict), new(python.Dict)
		function.Set("name", t.name)
		function.Set("description", t.description)
		function.Set("parameters", t.parameters)
		if t.description == nil {
			function.Set("description", "")
		}
		if t.parameters == nil {
			function.Set("parameters", new(python.Dict))
		}
		tool.Set("type", "function")
		tool.Set("function", function)
		list.Items[i] = tool
	}
	return mistralJSON(list)
}

func mistralJSON(v python.Value) (string, error) {
	s, err := builtins.JSON(v, false)
	if err != nil {
		return "", notScorable("JSON for mistral-common: %w", err)
	}
	return s, nil
}

// mistralName reports whether mistral-common takes the name of a function:
// re.match(r"^[a-zA-Z0-9_-]{1,64}$"), where $ also matches before a last newline.
func mistralName(s string) bool {
	s = strings.TrimSuffix(s, "\n")
	return 0 < len(s) && len(s) <= 64 && strings.Trim(s, "_-"+mistralLetters) == ""
}

const mistralLetters = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

// mistralID returns the last nine characters of the id of a call (truncate_tool_call_ids), and
// whether it is nine letters and digits.
func mistralID(s string) (id string, ok bool) {
	if runes := []rune(s); len(runes) > 9 {
		s = string(runes[len(runes)-9:])
	}
	return s, len(s) == 9 && strings.Trim(s, mistralLetters) == ""
}

// read sets x to what mistral-common reads of a message.
func (x *mistralMessage) read(m *Model, from *message) error {
	if err := from.check(false, m.engine); err != nil {
		return err
	}
	x.role = from.role
	if err := x.readContent(m, from); err != nil {
		return err
	}
	switch x.role {
	case "system", "user":
	case "assistant":
		return x.readAnswer(m, from)
	case "tool":
		id, ok := from.toolCallID.(string)
		if !ok {
			return badField("tool_call_id", "missing")
		}
		if x.id, ok = mistralID(id); !ok {
			return badField("tool_call_id", "its end %q is not nine letters and digits, which mistral-common wants", x.id)
		}
		if name, ok := from.name.(string); ok && !mistralName(name) {
			return badField("name", "%.80q, which mistral-common refuses", name)
		}
	default:
		return badField("role", "%.60q is none of mistral-common's", from.role)
	}
	return nil
}

func (x *mistralMessage) readContent(m *Model, from *message) error {
	if from.features&featureParts == 0 {
		x.bare = true
		if len(from.content) == 0 && from.role != "assistant" {
			return badField("content", "missing")
		}
		if len(from.content) > 0 && from.content[0].text != "" {
			x.chunks = []mistralChunk{{text: from.content[0].text}}
		}
		return nil
	}
	if from.rare != nil && from.rare.lazy {
		return unscored("content", "an array, which may reach the engine as an iterator, of which it makes nothing")
	}
	for i := range from.content {
		p := &from.content[i]
		c := mistralChunk{text: p.text}
		if r := p.rare; r != nil {
			c.thinking, c.open = r.kind == "thinking", r.open
			if r.bare || r.kind != "" && r.kind != "text" && !c.thinking || p.kind == partSkipped {
				return within(badField("type", "no text that mistral-common takes"), "content[%d]", i)
			}
		}
		x.chunks = append(x.chunks, c)
	}
	return m.mistral.checkThoughts(x)
}

// checkThoughts refuses thoughts where the tokenizer has none.
func (t *mistral) checkThoughts(x *mistralMessage) error {
	for _, c := range x.chunks {
		if c.thinking && (!t.thinks || x.role != "assistant" && (x.role != "system" || t.version >= 15)) {
			return badField("", "thoughts, which a message of the %s may not have with tokenizers of version %d", x.role, t.version)
		}
	}
	return nil
}

func (x *mistralMessage) readAnswer(m *Model, from *message) error {
	if reasoning, ok := from.reasoningOf(m.engine).(string); ok {
		if slices.ContainsFunc(x.chunks, func(c mistralChunk) bool { return c.thinking }) {
			return badField("reasoning", "beside thoughts in the content")
		}
		x.chunks = append([]mistralChunk{{text: reasoning, thinking: true}}, x.chunks...)
		x.bare = false
		if err := m.mistral.checkThoughts(x); err != nil {
			return err
		}
	}
	for i := range from.arguments {
		call, err := from.mistralCall(i, m.engine)
		if err == nil && call.id == "null" && m.mistral.version >= 13 {
			err = badField("id", `"null"`)
		}
		if err != nil {
			return within(err, "tool_calls[%d]", i)
		}
		x.calls = append(x.calls, call)
	}
	if m.mistral.version == 3 && (len(x.chunks) > 0) == (len(x.calls) > 0) {
		return badField("content", "beside tool_calls, or neither, which tokenizers of version 3 refuse")
	}
	return nil
}

func (m *message) mistralCall(i int, engine version) (call mistralCall, err error) {
	v, _ := m.toolCalls.Items[i].(*python.Dict).Lookup("function")
	function := v.(*python.Dict)
	id, name := m.called(i)
	call.name, call.arguments = name, optional(function, "arguments")
	var ok bool
	switch call.id, ok = mistralID(id); {
	case !ok && call.id != "null":
		err = badField("id", "its end %q is not nine letters and digits, which mistral-common wants", call.id)
	case !mistralName(name):
		err = badField("function.name", "%.80q, which mistral-common refuses", name)
	case function.Len() > 2:
		err = badField("function", "more than a name and arguments")
	case m.rare != nil:
		for _, odd := range m.rare.odd {
			if odd.call == i && !engine.does(odd.until) {
				err = unscored("function.arguments", "no object, of which this version of the engine may make something")
			}
		}
	}
	return call, err
}

// mistralOrder has the roles that may follow a role.
var mistralOrder = map[string]string{
	"system": "user assistant system", "user": "assistant system user",
	"assistant": "assistant user tool", "tool": "assistant tool user",
}

// check refuses what mistral-common's validator refuses of a chat.
func (t *mistral) check(messages []mistralMessage, continues bool) error {
	last := len(messages) - 1
	switch answers := messages[last].role == "assistant"; {
	case continues && !answers:
		return badField("continue_final_message", "the last message is not the assistant's")
	case answers && !continues:
		return badField("continue_final_message", "false, and the last message is the assistant's")
	case last == 0 && messages[0].role != "user" && messages[0].role != "system":
		return badField("messages[0].role", "one message, which is neither the user's nor the system's")
	}
	asked := make(map[string]bool) // the calls of the last answer: whether they are answered
	open := 0                      // of them, not answered
	for i := 1; i <= last; i++ {
		x := &messages[i]
		if !strings.Contains(mistralOrder[messages[i-1].role], x.role) {
			return badField("role", "messages[%d] of the role %s behind one of the role %s", i, x.role, messages[i-1].role)
		}
		switch x.role {
		case "tool":
			answered, known := asked[x.id]
			if t.version >= 11 && (!known || answered) {
				return badField("tool_call_id", "messages[%d] answers no call, or one again", i)
			}
			asked[x.id] = true
			open--
		case "assistant":
			if open != 0 {
				return badField("tool_calls", "the calls before messages[%d] have more or less answers", i)
			}
			clear(asked)
			open = len(x.calls)
			for _, c := range x.calls {
				if _, twice := asked[c.id]; twice && t.version >= 11 {
					return badField("tool_calls", "messages[%d] has an id twice", i)
				}
				asked[c.id] = false
			}
		}
	}
	return nil
}

// join joins messages of one role that follow each other. Answers of tools stay apart, and get
// the order of their calls, as do messages of the system's.
func (t *mistral) join(messages []mistralMessage) []mistralMessage {
	list := make([]mistralMessage, 0, len(messages)+1)
	var system, called []string // the prompts of version 3; calls since the last answers of tools
	for from, to := 0, 0; from < len(messages); from = to {
		for to < len(messages) && messages[to].role == messages[from].role {
			to++
		}
		run := messages[from:to]
		switch role := run[0].role; {
		case role == "system" && t.version == 3:
			for i := range run {
				if len(run[i].chunks) > 0 {
					system = append(system, textOfMistral(t.joined(run[i:i+1])))
				}
			}
		case role == "system" || role == "tool":
			for i := range run {
				x := run[i]
				x.chunks = t.joined(run[i : i+1])
				list = append(list, x)
			}
			if role == "tool" {
				if t.version >= 11 {
					sortMistral(list[len(list)-len(run):], called)
				}
				called = called[:0]
			}
		default:
			x := mistralMessage{role: role, chunks: t.joined(run)}
			for i := range run {
				x.calls = append(x.calls, run[i].calls...)
			}
			for _, c := range x.calls {
				called = append(called, c.id)
			}
			list = append(list, x)
		}
	}
	if len(list) == 0 || t.version == 3 && list[0].role != "user" {
		list = slices.Insert(list, 0, mistralMessage{role: "user"})
	}
	if prompt := strings.Join(system, "\n\n"); prompt != "" {
		for i := range slices.Backward(list) {
			if list[i].role == "user" {
				list[i].chunks = []mistralChunk{{text: prompt + "\n\n" + textOfMistral(list[i].chunks)}}
				break
			}
		}
	}
	return list
}

// sortMistral puts answers of tools into the order of their calls.
func sortMistral(answers []mistralMessage, called []string) {
	places := make(map[string]int, len(called))
	for i, id := range called {
		places[id] = i
	}
	slices.SortStableFunc(answers, func(a, b mistralMessage) int { return places[a.id] - places[b.id] })
}

// joined returns the contents of messages as chunks, of which no two are text behind each other
// (_aggregate_content_chunks_impl).
func (t *mistral) joined(messages []mistralMessage) []mistralChunk {
	if len(messages) == 1 && len(messages[0].chunks) < 2 {
		if c := messages[0].chunks; len(c) == 0 || c[0].thinking || c[0].text != "" {
			return c
		}
	}
	within := "\n\n"
	if t.version >= 15 {
		within = ""
	}
	var list []mistralChunk
	var text []string
	flush := func() {
		if len(text) > 0 {
			list = append(list, mistralChunk{text: strings.Join(text, "")})
			text = text[:0]
		}
	}
	for i := range messages {
		next := len(text) > 0
		for _, c := range messages[i].chunks {
			switch {
			case c.thinking:
				flush()
				list = append(list, c)
				continue
			case c.text == "":
				continue
			case len(text) == 0:
			case next:
				text = append(text, "\n\n")
			default:
				text = append(text, within)
			}
			text = append(text, c.text)
			next = false
		}
	}
	flush()
	return list
}

// textOfMistral returns the text of chunks without thoughts.
func textOfMistral(chunks []mistralChunk) string {
	if len(chunks) == 0 {
		return ""
	}
	return chunks[0].text
}

// A mistralWriter writes a chat.
type mistralWriter struct {
	*mistral
	tools, effort string
	text          []byte
	pieces        []textPiece
}

// control writes a control token.
func (w *mistralWriter) control(name string) {
	w.text = append(w.text, name...)
	w.pieces = append(w.pieces, textPiece{end: len(w.text), token: w.tokens[name], control: true})
}

// plain writes a text, which is encoded apart.
func (w *mistralWriter) plain(s string) {
	if s != "" {
		w.text = append(w.text, s...)
		w.pieces = append(w.pieces, textPiece{end: len(w.text)})
	}
}

func (w *mistralWriter) between(begin, s, end string) {
	w.control(begin)
	w.plain(s)
	w.control(end)
}

func (w *mistralWriter) write(messages []mistralMessage, continues bool) error {
	isUser := func(x mistralMessage) bool { return x.role == "user" }
	behind := slices.IndexFunc(messages, isUser) // the message behind the tools
	if w.version < 13 {
		for i := range messages {
			if isUser(messages[i]) {
				behind = i
			}
		}
	}
	w.control("<s>")
	for i := range messages {
		x := &messages[i]
		var err error
		switch x.role {
		case "user":
			if i == behind {
				w.settings()
			}
			w.between("[INST]", textOfMistral(x.chunks), "[/INST]")
		case "system":
			w.control("[SYSTEM_PROMPT]")
			w.chunks(x.chunks)
			w.control("[/SYSTEM_PROMPT]")
		case "tool":
			err = w.result(x)
		default:
			err = w.answer(x)
			if err == nil && (!continues || i < len(messages)-1) {
				w.control("</s>")
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (w *mistralWriter) settings() {
	if w.tools != "" {
		w.between("[AVAILABLE_TOOLS]", w.tools, "[/AVAILABLE_TOOLS]")
	}
	if w.effort != "" {
		w.between("[MODEL_SETTINGS]", `{"reasoning_effort": "`+w.effort+`"}`, "[/MODEL_SETTINGS]")
	}
}

func (w *mistralWriter) chunks(chunks []mistralChunk) {
	for _, c := range chunks {
		if c.thinking {
			w.control("[THINK]")
		}
		w.plain(c.text)
		if c.thinking && !c.open {
			w.control("[/THINK]")
		}
	}
}

// result writes the answer of a tool. Version 3 writes it as JSON if it is JSON.
func (w *mistralWriter) result(x *mistralMessage) error {
	content := textOfMistral(x.chunks)
	w.control("[TOOL_RESULTS]")
	switch {
	case w.version == 3:
		var v python.Value = new(python.Dict)
		if content != "" {
			var err error
			if v, err = decode(content); err != nil {
				var syntax *syntaxError
				if !errors.As(err, &syntax) {
					return notScorable("the content of a tool's message: %w", err)
				}
				v = content
			}
		}
		result := new(python.Dict)
		result.Set("content", v)
		result.Set("call_id", x.id)
		var err error
		if content, err = mistralJSON(result); err != nil {
			return err
		}
	case w.version < 13:
		w.plain(x.id)
		w.control("[TOOL_CONTENT]")
	}
	w.plain(content)
	w.control("[/TOOL_RESULTS]")
	return nil
}

// answer writes a message of the assistant's. A content that is text alone loses the spaces at
// its end.
func (w *mistralWriter) answer(x *mistralMessage) error {
	switch {
	case len(x.chunks) == 0 && len(x.calls) == 0:
		return badField("messages", "an answer with neither content nor tool_calls")
	case w.version == 3 && len(x.chunks) > 0 && len(x.calls) > 0:
		return badField("messages", "answers behind each other with content and tool_calls, which tokenizers of version 3 refuse")
	}
	if len(x.chunks) == 1 && !x.chunks[0].thinking {
		w.plain(strings.TrimRight(x.chunks[0].text, " "))
	} else {
		w.chunks(x.chunks)
	}
	if len(x.calls) == 0 {
		return nil
	}
	if w.version < 11 {
		return w.callsAsList(x.calls)
	}
	for _, c := range x.calls {
		arguments, err := mistralJSON(c.arguments)
		if err != nil {
			return err
		}
		w.control("[TOOL_CALLS]")
		w.plain(c.name)
		if w.version < 13 && c.id != "null" {
			w.control("[CALL_ID]")
			w.plain(c.id)
		}
		w.control("[ARGS]")
		w.plain(arguments)
	}
	return nil
}

func (w *mistralWriter) callsAsList(calls []mistralCall) error {
	list := &python.List{Items: make([]python.Value, len(calls))}
	for i, c := range calls {
		call := new(python.Dict)
		call.Set("name", c.name)
		call.Set("arguments", c.arguments)
		if c.id != "null" {
			call.Set("id", c.id)
		}
		list.Items[i] = call
	}
	s, err := mistralJSON(list)
	if err != nil {
		return err
	}
	w.control("[TOOL_CALLS]")
	w.plain(s)
	return nil
}
