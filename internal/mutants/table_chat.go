package main

var chatMutants = table{breaks: "./tokenize/chat", rows: []mutant{
	{"a git LFS pointer is a template", "read", "case strings.HasPrefix(string(b), \"version https://git-lfs.github.com/spec/\"):", "case false:", "TestSpecialTokens"},
	{"of equal keys the first counts", "decoder.object", "o.Set(key, v)\n", "if _, ok := o.Lookup(key); !ok {\n\t\t\to.Set(key, v)\n\t\t}\n", "TestJSON"},
	{"floats are read as integers", "decoder.number", "if d.at > whole {", "if d.at > whole && text[len(text)-1] != '0' {", "TestJSON"},
	{"bodies of any depth", "decoder.value", "d.depth > maxDepth {", "d.depth > 100*maxDepth {", "TestParseErrors"},
	{"values without bound", "decoder.count", "d.values > maxValues {", "false {", "TestParseCountsAllOfARequest"},
	{"long integers without bound", "decoder.number", "d.long > maxLong {", "false {", "TestParseCountsAllOfARequest"},

	{"arguments of calls count for themselves", "parseCalled", "v, err := n.decode(raw)", "v, err := decode(raw)", "TestParseCountsAllOfARequest"},

	{"tools of any length", "decoder.object", "d.at-from > maxTools {", "d.at < from {", "TestHostileTools"},

	{"arguments of calls stay strings", "parseCalled", "called.Set(\"arguments\", args)", "_ = args\n\tcalled.Set(\"arguments\", raw)", "TestShapes"},
	{"reasoning by its old name alone", "message.addReasoning", "v := m.reasoning\n\tvar replaced jinja.Value\n", "var v, replaced jinja.Value\n", "TestShapes"},

	{"tools in the order of the client", "tool.dump", "function.Set(\"name\", t.name)\n\tfunction.Set(\"description\", t.description)", "function.Set(\"description\", t.description)\n\tfunction.Set(\"name\", t.name)", "TestShapes"},

	{"the space behind the final message stays", "cutFinal", "return strings.TrimRightFunc(text[:at], isSpace), nil", "return text[:at], nil", "TestContinueFinal"},

	{"a part without text is refused", "part.parseText", "if name != \"text\" && name != \"refusal\" {", "if name != \"\" {", "TestVersions"},

	{"the tools' template is not chosen", "Model.choose", "ok && tools && !m.single {", "ok && false {", "TestChoice"},
	{"a request's template is not its own", "Model.choose", "if c.template != \"\" {", "if false {", "TestOwnTemplate"},
	{"a request's template of any length", "templateCache.compile", "if len(source) > maxRequestTemplate {", "if false {", "TestStepsGrowWithMessages"},
	{"harmony is rendered", "Model.compile", "strings.Contains(source, \"<|channel|>\")", "false", "TestRefusals"},

	{"harmony is not recognised", "otherTypes", "\"gpt_oss\":      \"harmony's (gpt-oss)\",", "", "TestOtherRenderers"},

	{"steps do not grow with messages", "template.limits", "base+len(messages)*messageSteps+", "base+len(messages)*0+", "TestStepsGrowWithMessages"},
	{"a request's template has a model's steps", "templateCache.compile", "t.foreign = true", "", "TestStepsGrowWithMessages"},

	{"features that are excluded are rendered", "Rendering.exclude", "f := x.features & e.all; f != 0", "f := x.features & e.all; f == ^f", "TestExclude"},
	{"another feature is excluded", "Rendering.exclude", "f := x.features & e.all; f != 0", "f := x.features; e.all != 0", "TestExclude"},
	{"another feature is excluded for a pod", "Rendering.Excluded", "f &= x.features; f != 0 &&", "f != 0 &&", "TestExclude"},
	{"excluded pods without bound", "Model.Exclude", "len(e.pods) >= maxExcluded:", "len(e.pods) < 0:", "TestExcludeBound"},
	{"a pod past the bound is forgotten", "Model.Exclude", "e.all |= f", "_ = f", "TestExcludeBound"},
	{"what is taken back stays", "Model.Exclude", "delete(e.pods, pod)", "_ = kept", "TestExclude"},
	{"exclusions are changed in place", "Model.Exclude", "old.all, maps.Clone(old.pods)", "old.all, old.pods\n\t\t\t_ = maps.Clone(e.pods)", "TestExclude"},
	{"documents of kwargs are kwargs", "conversation.findFeatures", "case \"documents\":\n\t\t\tf |= FeatureDocuments", "case \"documents\":\n\t\t\tf |= FeatureKwargs", "TestFeatures"},
	{"strict is a known field", "conversation.findFeatures", "t.more != nil || t.moreOfTool != nil", "len(t.more) > 1 || t.moreOfTool != nil", "TestFeatures"},
	{"a call's arguments are always objects", "message.parseToolCalls", "m.features |= FeatureArguments", "m.features |= 0", "TestFeatures"},
	{"an empty list of calls is none", "message.parseToolCalls", "m.features |= FeatureEmptyCalls", "m.features |= 0", "TestFeatures"},
	{"a tool's message is no turn", "featuresOfRole", "return FeatureTurns | FeatureToolCalls", "return FeatureToolCalls", "TestFeatures"},
	{"the header in a part is not found", "featuresOfSystem", "content[i].text, billingHeader", "content[i].text, billingHeader+string(rune(i))", "TestFeatures"},
	{"a string among parts is one", "part.parse", "return FeatureStringParts, nil", "return 0, nil", "TestFeatures"},
	{"a part without text is one with text", "part.featuresOfPart", "p.text == \"\" {", "p.text == \"\" && p.kind != partSkipped {", "TestFeatures"},
	{"all fields of a part are known", "part.featuresOfPart", "o.Len() > known {", "o.Len() > known+9 {", "TestFeatures"},

	{"media in any number", "Rendering.Expand", "if len(media) < len(x.media) {", "if false {", "TestMedia"},
	{"media of models that place them otherwise", "Rendering.place", "case !ok:", "case !ok && id > 0:", "TestMedia"},

	{"a turn earlier has the answer in it", "Rendering.Shared", "c.messages[:at], false, vars)", "c.messages[:at+1], false, vars)", "TestShared"},

	{"names without end", "Models.load", "len(s.loads) >= maxModels && !s.evict()", "false", "TestModelsBounds"},
	{"an error is for ever", "Models.load", "now.Sub(l.ended) < retry", "true", "TestModelsBounds"},
	{"another's context ends a wait", "Models.load", "context.WithoutCancel(ctx)", "ctx", "TestModelsWaitWithinContext"},

	{"half a pair of surrogates is a character", "decoder.escape", "return 0, badField(\"\", \"a lone surrogate in a string, which no tokenizer takes\")", "return utf8.RuneError, nil", "TestJSON"},
	{"numbers without bound", "decoder.countSmall", "if d.tokens++; d.tokens > maxTokens {", "if d.tokens++; false {", "TestJSON"},
	{"numbers of a schema are token ids", "decoder.countSmall", "if d.depth > tokenDepth {", "if false {", "TestJSON"},
	{"an int of any length", "decoder.number", "if digits > maxDigits {", "if false {", "TestJSON"},
	{"leading zeros", "decoder.number", "if d.s[d.at] == '0' {", "if false {", "TestJSON"},
	{"more behind a request", "counts.decode", "if d.space(); d.at < len(s) {", "if d.space(); false {", "TestJSON"},

	{"special tokens around a chat", "parseRequest", "flag(o, \"add_special_tokens\", api == completions)", "flag(o, \"add_special_tokens\", true)", "TestParse"},
	{"no special tokens around a prompt", "parseRequest", "flag(o, \"add_special_tokens\", api == completions)", "flag(o, \"add_special_tokens\", false)", "TestParse"},

	{"a number is no boolean", "asFlag", "\tcase float64:\n\t\treturn v == 1, v == 0 || v == 1", "\tcase float64:\n\t\treturn false, false", "TestParse"},

	{"an empty salt is none", "parseRequest", "if optional(o, \"cache_salt\") != nil && r.Salt == \"\" {", "if false {", "TestParseErrors"},
	{"a generation prompt behind the final message", "parseConversation", "if c.continueFinal && c.addGenerationPrompt {", "if false {", "TestParseErrors"},
	{"a chat with a prompt", "apiOfBody", "case chat && completion:", "case false:", "TestParseErrors"},
	{"a truncated prompt is whole", "refuseFields", "[]string{\"truncate_prompt_tokens\", \"prompt_embeds\"}", "[]string{\"prompt_embeds\"}", "TestParseErrors"},

	{"a developer's tools are dropped", "message.parse", "if optional(o, \"tools\") != nil {", "if false {", "TestParseErrors"},
	{"empty parts leave a line", "joined", "|| p.text == \"\" && !empties {", "{", "TestMessages"},
	{"parts are joined by a space", "joined", "b.WriteByte('\\n')", "b.WriteByte(' ')", "TestMessages"},
	{"a tool's answer is in parts", "message.dict", "joins := m.role == \"tool\" &&", "joins := m.role == \"\" &&", "TestShapes"},
	{"reasoning_content goes first", "message.addReasoning", "case v == nil && engine.does(renamesReasoning):", "case replaced != nil && engine.does(renamesReasoning):", "TestShapes"},
	{"reasoning by one name", "message.addReasoning", "d.Set(\"reasoning_content\", v)", "", "TestShapes"},
	{"broken arguments are refused", "parseCalled", "err != nil && !errors.As(err, &syntax):", "err != nil && (true || errors.As(err, &syntax)):", "TestVersions"},
	{"a tool call in the client's order", "parseToolCall", "call = new(jinja.Dict)\n", "call = new(jinja.Dict)\n\tothers(call, o)\n", "TestShapes"},
	{"a tool call without its other fields", "parseToolCall", "\tothers(call, o)\n", "", "TestShapes"},
	{"any name of a tool's answer is one", "message.parseName", "!ok || m.role == \"tool\" && id {", "!ok || id && false {", "TestMessages"},

	{"strict unset is there", "addFlag", "if f.name != name || f.value == nil {", "if f.name != name {", "TestShapes"},
	{"a tool without its other fields", "addOthers", "\t\to.Set(f.name, f.value)\n", "\t\t_ = f\n", "TestShapes"},
	{"strict among other fields", "addOthers", "strict && f.name == \"strict\" ||", "", "TestShapes"},
	{"a tool does not defer for its function", "tool.dump", "if _, own := function.Lookup(\"defer_loading\"); !own {", "if false {", "TestShapes"},

	{"tools not chosen are taken away", "Model.tools", "c.noTools && (m.options.ExcludeTools || !m.engine.does(keepsTools)) {", "c.noTools {", "TestVariables"},
	{"tools not chosen stay", "Model.tools", "c.noTools && (m.options.ExcludeTools || !m.engine.does(keepsTools)) {", "false {", "TestVariables"},
	{"null takes the engine's kwargs away", "addKwargs", "case !unset && (v == nil || v == \"auto\"):", "case !unset && v == \"auto\":", "TestVariables"},
	{"auto is a value", "addKwargs", "case !unset && (v == nil || v == \"auto\"):", "case !unset && v == nil:", "TestVariables"},
	{"kwargs that are no variables", "addKwargs", "case slices.Contains(refusedKwargs, name):", "case false:", "TestRefusals"},
	{"kwargs take the place of functions", "addKwargs", "case slices.Contains(droppedKwargs, name), ", "case ", "TestVariables"},
	{"effort goes before thinking", "Model.addEffort", "!ok && m.engine.does(enablesThinking) {", "m.engine.does(enablesThinking) || ok {", "TestVariables"},
	{"kwargs go before the generation prompt", "Model.prepare", "\tvars.Set(\"add_generation_prompt\", c.addGenerationPrompt)\n", "\tif _, ok := vars.Lookup(\"add_generation_prompt\"); !ok {\n\t\tvars.Set(\"add_generation_prompt\", c.addGenerationPrompt)\n\t}\n", "TestVariables"},
	{"kwargs go before documents", "Model.prepare", "if c.documents != nil {", "if _, ok := vars.Lookup(\"documents\"); !ok && c.documents != nil {", "TestVariables"},
	{"tools of kwargs may be anything", "checkObjects", "if _, ok := item.(*jinja.Dict); !ok {", "if _, ok := item.(*jinja.Dict); !ok && item == nil {", "TestRefusals"},

	{"a final message of which the text has no more", "cutFinal", "at < 0 || !strings.Contains(text, strings.TrimFunc(final, isSpace)) {", "at < 0 {", "TestContinueFinal"},
	{"the first tag is the end", "cutFinal", "strings.LastIndex(text, tag)", "strings.Index(text, tag)", "TestContinueFinal"},
	{"space before the end is cut", "cutFinal", "if strings.HasPrefix(text[at:], finalTag) {", "if false {", "TestContinueFinal"},
	{"separators are no space", "isSpace", "return unicode.IsSpace(r) || 0x1c <= r && r <= 0x1f", "return unicode.IsSpace(r)", "TestContinueFinal"},
	{"the first part is continued", "tagFinal", "for i := len(parts) - 1; i >= 0; i-- {", "for i := range parts {", "TestContinueParts"},
	{"system messages are always made one", "systemFirst", "misplaced = misplaced || i > 0", "misplaced = true", "TestMessages"},
	{"system messages are lines", "systemFirst", "strings.Join(system, \"\\n\\n\")", "strings.Join(system, \"\\n\")", "TestMessages"},

	{"a developer is always a system", "Model.render", "if developer && !t.developer &&", "if developer &&", "TestMessages"},

	{"the engine's template goes before a request's", "Model.choose", "if c.template != \"\" {", "if c.template != \"\" && m.given == nil {", "TestOwnTemplate"},
	{"the model's template goes before the engine's", "Model.choose", "if m.given != nil {", "if m.given != nil && len(m.named) == 0 {", "TestOwnTemplate"},
	{"a single template has a name", "Model.choose", "ok && !m.single {\n\t\t\tif", "ok {\n\t\t\tif", "TestOwnTemplate"},
	{"templates of requests are taken", "Model.choose", "if m.options.RefuseTemplates {", "if false {", "TestRefusals"},
	{"the processor's template for tools", "Model.choose", "if !tools && m.processor != nil {", "if m.processor != nil {", "TestChoice"},
	{"the template for tools without tools", "Model.choose", "m.named[toolTemplate]; ok && tools &&", "m.named[toolTemplate]; ok &&", "TestChoice"},

	{"files beside the config's templates", "Model.readTemplates", "if len(sources) > 0 {", "if false {", "TestChoice"},

	{"templates of requests without bound", "templateCache.compile", "if len(c.oldest) == maxCached {", "if false {", "TestOwnTemplate"},
	{"the content format of the options is not heard", "Model.compile", "\tcase \"string\":\n", "", "TestMessages"},

	{"harmony is switched off", "refuseModel", "(!usesTemplate || kind == \"gpt_oss\")", "!usesTemplate", "TestOtherRenderers"},
	{"architectures by their whole names", "refuseModel", "strings.HasPrefix(a, o.architecture)", "strings.HasPrefix(o.architecture, a)", "TestOtherRenderers"},
	{"mistral-common is a template", "refuseModel", "len(files) > 0 {", "len(files) < 0 {", "TestOtherRenderers"},

	{"code of the repository is not run", "Model.load", "if optional(tokenizer, \"auto_map\") != nil {", "if false {", "TestSpecialTokens"},
	{"a special token that is not told is none", "Model.readSpecial", "if !ok && !slices.Contains(plainTokenizers, class) && strings.Contains(templates, name) {", "if !ok && !slices.Contains(plainTokenizers, class) && name == \"\" {", "TestSpecialTokens"},
	{"special tokens of another file", "Model.readSpecial", "older && strings.Contains(templates, \"_token\") {", "older && false {", "TestSpecialTokens"},

	{"any llava places its images so", "mediaOf", "case \"clip_vision_model\", \"siglip_vision_model\":", "default:", "TestMedia"},
	{"media of a text", "Rendering.place", "\t\t\tcase !t.parts:\n", "\t\t\tcase false:\n", "TestMedia"},
	{"media with options", "Rendering.place", "case c.mediaOptions != \"\":", "case false:", "TestMedia"},
	{"media more than parts", "Rendering.place", "if len(x.media) != len(x.expands) {", "if len(x.media) < len(x.expands) {", "TestMedia"},
	{"media begin behind what was there", "Rendering.Expand", "m.Offset = len(dst) - from", "m.Offset = len(dst)", "TestMedia"},
	{"a placeholder of nobody", "Rendering.Expand", "if n == len(x.media) || x.expands[n] != token {", "if n == len(x.media) {\n\t\t\tdst = append(dst, token)\n\t\t\tcontinue\n\t\t}\n\t\tif x.expands[n] != token {", "TestMedia"},

	{"any message ends a turn", "Rendering.Shared", "c.messages[at].role != \"assistant\" {", "false {", "TestShared"},
	{"the final message ends the turn before", "Rendering.Shared", "at := len(c.messages) - 2", "at := len(c.messages) - 1", "TestShared"},
	{"the turn before had no generation prompt", "Rendering.Shared", "\tearlier.addGenerationPrompt = true\n", "", "TestShared"},
	{"texts part within a character", "commonPrefix", "for n > 0 && n < len(b) && b[n]&0xc0 == 0x80 {", "for n > 0 && n < len(b) && false {", "TestShared"},
	{"a limit is the template's refusal", "renderError", "errors.Is(err, jinja.ErrUnsupported), errors.Is(err, jinja.ErrLimit):", "errors.Is(err, jinja.ErrUnsupported):", "TestRefusals"},

	{"the first waits whatever it takes", "Models.load", "go s.fill(", "s.mu.Unlock()\n\tdefer s.mu.Lock()\n\ts.fill(", "TestModelsWaitWithinContext"},
	{"what is being loaded makes room", "Models.evict", "!l.loading() && (", "(", "TestModelsBusy"},
	{"errors are not remembered", "Models.load", "now.Sub(l.ended) < retry)", "false)", "TestModelsBounds"},
	{"an error stands for a model's place", "Models.evict", "failed && worst.ended.IsZero() || failed == !worst.ended.IsZero() && l.used.Before(worst.used)", "failed && false || l.used.Before(worst.used)", "TestModelsKeepModels"},

	{"null arguments are kept", "message.addCalls", "if !engine.does(odd.until) {", "if !engine.does(odd.until) || odd.json && odd.value == nil {", "TestVersions"},
	{"a list is arguments", "message.addCalls", "if !engine.does(odd.until) {", "if odd.json {", "TestShapes"},
	{"arguments that are odd are changed for all", "withArguments", "list := &jinja.List{Items: slices.Clone(calls.Items)}", "_ = slices.Clone[[]jinja.Value]\n\tlist := calls", "TestOneRequestOfManyEngines"},
	{"an unknown field of a part is dropped", "partsOf", "for _, f := range p.rare.more {", "for _, f := range p.rare.more[:0] {", "TestShapes"},
	{"a known field of a part is handed on", "part.parseMore", "!partFields[name] {", "true {", "TestShapes"},
	{"the billing header stays", "message.dict", "engine.does(dropsBillingHeader) {", "false {", "TestVersions"},
	{"the billing header of anybody", "message.dict", "if m.role == \"system\" && ", "if ", "TestVersions"},
	{"the billing header of a refusal", "part.billed", "p.rare.kind == \"\" || ", "true || ", "TestVersions"},
	{"the version is ignored", "version.does", "v >= history[c].since", "inMain >= history[c].since", "TestVersions"},
	{"what is not known of a version is not done", "version.knows", "h.unknown == 0 ||", "true ||", "TestVersions"},
	{"a version without its second number", "parseVersion", "v += version(n) * scale", "v += version(n) * scale * version(i)", "TestVersions"},
	{"any salt", "oddSalt", "s, \"@/\\\\\\x00\") ||", "\"\", s) ||", "TestVersions"},
	{"a salt's bytes are its characters", "oddSalt", "utf8.RuneCountInString(s) > maxSalt", "utf8.RuneCountInString(s) > 0", "TestVersions"},
	{"n may be anything", "parseRequest", "!isInteger(v) &&", "false &&", "TestParseErrors"},
	{"the kwargs of old engines are merged", "Model.prepare", "if !merges {", "if false {", "TestVersions"},
	{"a template that is unsure", "Model.check", "if t.unsure {", "if false {", "TestContentFormatByVersion"},

	{"Anthropic's messages are a chat", "apiOfBody", "a != unknown && v != nil {", "a > messages && v != nil {", "TestOtherAPIs"},
	{"Anthropic's blocks are malformed", "orAnother", "path != \"\" {", "false {", "TestOtherAPIs"},
	{"Anthropic's thoughts are a chat's", "conversation.signed", "return true", "return false", "TestOtherAPIs"},
	{"the path is not heard", "apiOf", "return p.api", "_ = p", "TestParsePath"},
	{"the query is the path", "apiOf", "if i := strings.IndexAny(path, \"?#\"); i >= 0 {", "if i := -1; i >= 0 {", "TestParsePath"},
}}
