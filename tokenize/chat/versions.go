package chat

import "github.com/kvindex/kvindex/internal/vllmversion"

// A version is one of vLLM's.
type version vllmversion.Version

const inMain = version(vllmversion.Main)

// parseVersion reads Options.Engine.
func parseVersion(s string) (version, error) {
	v, err := vllmversion.Parse(s)
	return version(v), err
}

// A change is one in vLLM's reading of chats.
type change uint8

const (
	always change = iota
	keepsTools
	takesThinking
	takesEffort
	skipsEmptyParts
	takesEmptyArguments
	filtersKwargs
	handsReasoning
	takesOutputText
	dropsEmptyCalls
	handsDeveloperTools
	rendersHarmony
	handsEffort
	mergesKwargs
	readsReasoningAlone
	takesEffortNone
	takesMediaOptions
	wrapsStrings
	looksUpTemplates
	encodesV32
	joinsToolText
	handsTask
	refusesEmptyTools
	takesReferences
	takesDeferLoading
	takesAllEfforts
	findsLoopsOverContent
	renamesReasoning
	enablesThinking
	takesNullArguments
	makesDeveloperSystem
	foldsInstructions
	takesStrict
	takesSilentTools
	handsPartFields
	dropsToolFields
	encodesMistral
	encodesV4
	opensAnswers
	findsLoopsOverParameters
	checksSalts
	attachesTools
	encodesV41
	takesAnyArguments
	dropsBillingHeader

	// Of the Messages API.
	readsMessages
	takesDefaultKwargs
	dropsEmptyTurns
	passesKwargs
	takesOutputConfig
	takesInlineSystem
	passesStrict
	probesSystem
	passesSalt
	placesSystem
	disablesThinking

	// Of the Responses API.
	readsResponses
	joinsItems
	readsResponseTools
	changes
)

// history has the release since which vLLM has each change. It was read at the tags of 0.9.0
// to 0.27.1 and in main of 21 August and of autumn 2026; 0.28.0 is of 26 August. Sources are
// files below vllm/ and commits of main.
//
// The tags of later releases could not be read. Where neither dates nor other reports settle
// whether they have a change, the versions from unknown to before since may or may not have
// it: chats that depend on it are not scorable for these.
var history = [changes]struct {
	since, unknown version
	does           string
	source         string
}{
	always:                   {0, 0, "", ""},
	keepsTools:               {9_002, 0, "tools stay although none may be chosen", "entrypoints/openai/protocol.py, 3d19d47d9"},
	takesThinking:            {10_000, 0, "it takes parts of the types thinking and input_text", "entrypoints/chat_utils.py, 6d8d0a24c"},
	takesEffort:              {10_001, 0, "reasoning_effort is a field, of low, medium or high", "entrypoints/openai/protocol.py, f263a4b53"},
	skipsEmptyParts:          {11_000, 0, "it skips parts without text, and refuses texts with a uuid", "entrypoints/chat_utils.py, 7f2ea7074"},
	takesEmptyArguments:      {11_000, 0, "empty arguments of a tool call are {}", "entrypoints/chat_utils.py, f91480b2d"},
	filtersKwargs:            {11_000, 0, "it drops kwargs that are no variables of the template", "entrypoints/chat_utils.py, 7977e5027"},
	handsReasoning:           {11_001, 0, "templates get reasoning", "entrypoints/chat_utils.py, 5c9ad138d"},
	takesOutputText:          {12_000, 0, "it takes parts of the type output_text", "entrypoints/chat_utils.py, ea38474ac"},
	dropsEmptyCalls:          {13_000, 0, "it drops an empty list of tool calls", "entrypoints/chat_utils.py, b337647aa"},
	handsDeveloperTools:      {13_000, 0, "developer messages have tools, null without", "entrypoints/chat_utils.py, 855b101d7"},
	rendersHarmony:           {14_000, 0, "harmony gets tools by the ids of calls, and a developer's message for tools only", "entrypoints/openai/parser/harmony_utils.py, 8f8fda261, and serving_chat.py, 6a09612b2"},
	handsEffort:              {14_000, 0, "templates get reasoning_effort, until 0.16 as null without", "entrypoints/openai/chat_completion/serving.py, 60b77e146"},
	mergesKwargs:             {16_000, 0, "fields go before chat_template_kwargs, of which null and auto count for nothing", "renderers/params.py, f0a1c8453"},
	readsReasoningAlone:      {16_000, 0, "reasoning_content no longer stands in for reasoning", "entrypoints/chat_utils.py, c5113f60f and bf001da4b"},
	takesEffortNone:          {18_000, 0, "reasoning_effort may be none", "entrypoints/openai/chat_completion/protocol.py, a3ea760ea"},
	takesMediaOptions:        {18_000, 0, "media_io_kwargs is a field", "entrypoints/openai/chat_completion/protocol.py, 755356b3d, pull request 34778, in the notes of 0.18.0"},
	wrapsStrings:             {18_000, 0, "a string among parts becomes a part", "entrypoints/chat_utils.py, 0836be3b0"},
	looksUpTemplates:         {18_000, 0, "chat_template may name one before its content format is detected", "renderers/hf.py, b41aa264f"},
	encodesV32:               {18_000, 0, "DeepSeek-V3.2 has a program that takes parsed arguments; earlier versions may, too", "tokenizers/deepseek_v32.py, a96197f56, read in 0.18"},
	joinsToolText:            {20_000, 0, "a tool message of texts is one string", "entrypoints/chat_utils.py, afabb5f45"},
	handsTask:                {20_000, 0, "templates get task", "entrypoints/chat_utils.py, 4d51588e2"},
	refusesEmptyTools:        {20_000, 0, "it refuses an empty list of tools", "entrypoints/openai/chat_completion/protocol.py, 18013df6a"},
	takesReferences:          {21_000, 0, "it takes parts of the type tool_reference", "entrypoints/chat_utils.py, 11b69129e"},
	takesDeferLoading:        {21_000, 0, "defer_loading of tools is a field", "entrypoints/openai/chat_completion/protocol.py, 11b69129e"},
	takesAllEfforts:          {21_000, 0, "reasoning_effort may be minimal, xhigh or max", "entrypoints/openai/chat_completion/protocol.py, 33f36d426"},
	findsLoopsOverContent:    {22_000, 0, "a template wants parts if it loops over a variable content", "renderers/hf.py, 56434e865"},
	renamesReasoning:         {22_000, 0, "reasoning_content stands in for a reasoning that is null", "entrypoints/openai/chat_completion/protocol.py, 346cf163a"},
	enablesThinking:          {22_000, 0, "reasoning_effort sets enable_thinking", "entrypoints/openai/chat_completion/protocol.py and responses/protocol.py, 52a31ccec, pull request 43401"},
	takesNullArguments:       {23_000, 0, "arguments null of a tool call are {}", "entrypoints/chat_utils.py, f0204358d"},
	makesDeveloperSystem:     {23_000, 0, "developer messages become system messages where the template does not know them", "renderers/hf.py, 27f1d34a2"},
	foldsInstructions:        {23_000, 0, "harmony gets a first system message as instructions", "entrypoints/openai/parser/harmony_utils.py, 703fb17b1, in the notes of 0.23.0"},
	takesStrict:              {24_000, 0, "strict of functions is a field", "entrypoints/openai/engine/protocol.py, cd9078fe5"},
	takesSilentTools:         {24_000, 23_000, "harmony takes tools without a description", "entrypoints/openai/parser/harmony_utils.py, 5828a205e, of 9 June 2026"},
	handsPartFields:          {26_000, 0, "templates get unknown fields of parts", "entrypoints/chat_utils.py, 26c909ed7"},
	dropsToolFields:          {27_000, 0, "it drops unknown fields of tools", "entrypoints/openai/engine/protocol.py, e8b358b4c"},
	encodesMistral:           {27_001, 0, "mistral-common is 1.11.6 or 1.11.7, which make the same ids; earlier versions may have others", "requirements/common.txt of 0.27.1, 0.29.0 and 0.30.0; tokenizers/mistral.py, read at 0065ad5b3, and renderers/mistral.py, at 00cd8fcf6"},
	encodesV4:                {28_000, 0, "DeepSeek-V4 has a program that thinks by default, at the efforts of its release of 31 July 2026", "tokenizers/deepseek_v4.py, 774348619, pull request 50580"},
	opensAnswers:             {29_000, 28_000, "DeepSeek-V4 answers, or has answered, a message of the system's", "tokenizers/deepseek_v4_encoding.py, pull request 51262, in main by 25 August 2026"},
	findsLoopsOverParameters: {31_000, 29_000, "a template wants parts if a macro loops over content that it is given", "renderers/hf.py, pull request 53824, opened on the day of 0.28.0"},
	checksSalts:              {31_000, 29_000, "it refuses salts of more than 128 characters or with @, /, \\ or NUL", "entrypoints/generate/base/protocol.py, 022e555db; pull request 51444, merged in September 2026"},
	attachesTools:            {inMain, 28_001, "DeepSeek-V4's tools follow the first message of the system's", "tokenizers/deepseek_v4.py, pull request 51856, of August 2026; not in 0.28.0"},
	encodesV41:               {inMain, 0, "DeepSeek-V4.1 has a program; releases may, too", "tokenizers/deepseek_v41.py, 9c5b71639"},
	takesAnyArguments:        {inMain, 29_000, "arguments of a tool call that are no JSON, or no object, are {}", "renderers/chat_utils/parse_chat_message.py, be90fe165; pull request 48922, which others brought to 0.28"},
	dropsBillingHeader:       {inMain, 28_000, "it drops a first line x-anthropic-billing-header of system texts", "renderers/chat_utils/parse_chat_message_content.py, be90fe165; not in main of 21 August 2026"},

	readsMessages:      {18_000, 11_001, "it reads the Messages API in the way that is known here", "entrypoints/anthropic/serving.py, 0e5a9382a"},
	takesDefaultKwargs: {19_000, 0, "--default-chat-template-kwargs are for the Messages API, too", "entrypoints/anthropic/serving.py, 16a664df2"},
	dropsEmptyTurns:    {19_001, 0, "it drops messages of the user without content, such as those with tool results only", "entrypoints/anthropic/serving.py, 8477fe427, in 0.19.1 as 9a234c7ad"},
	passesKwargs:       {21_000, 20_000, "it passes chat_template_kwargs on", "entrypoints/anthropic/serving.py, b82fc1364, of 20 April 2026"},
	takesOutputConfig:  {23_000, 0, "output_config has an effort", "entrypoints/anthropic/protocol.py, d692b89c2, in the notes of 0.23.0"},
	takesInlineSystem:  {23_000, 0, "it takes system messages among the messages, and moves them into the system prompt", "entrypoints/anthropic/serving.py, ed9a7526b, of 2 June 2026"},
	passesStrict:       {24_000, 0, "it passes strict on", "entrypoints/anthropic/serving.py, cd9078fe5"},
	probesSystem:       {24_000, 0, "system messages stay in place if --chat-template renders them", "entrypoints/anthropic/serving.py, pull requests 44602 and 46025, of 18 June 2026; read at aab1c5621"},
	passesSalt:         {27_000, 0, "it passes cache_salt on", "entrypoints/anthropic/serving.py, pull request 49498, in the notes of 0.27.0; read at aab1c5621"},
	placesSystem:       {inMain, 30_000, "system messages stay in place, or join the messages beside them, by a probe", "entrypoints/anthropic/inline_system.py, a8c3bdb20; not in main of 11 September 2026"},
	disablesThinking:   {inMain, 29_000, "thinking that is disabled is an effort", "entrypoints/anthropic/serving.py, a8c3bdb20; pull request 53058 was open on 20 August 2026"},

	readsResponses:     {18_000, 10_000, "it reads the Responses API in the way that is known here", "entrypoints/openai/responses/utils.py, read in 0.18"},
	joinsItems:         {22_000, 0, "items of the assistant's join one message, and --default-chat-template-kwargs are for the Responses API, too", "entrypoints/openai/responses/utils.py, 6ff7405b8, and serving.py, 617239b70, of May 2026"},
	readsResponseTools: {inMain, 18_000, "it gives tools of the Responses API to templates, and joins some items", "entrypoints/openai/responses/utils.py, read at 01ca842df"},
}

// does reports whether the version is known to have a change.
func (v version) does(c change) bool { return v >= history[c].since }

// knows returns an error about a field if the version may or may not have a change. It names the
// first version that is known to have it.
func (v version) knows(c change, path string) error {
	h := history[c]
	if h.unknown == 0 || v < h.unknown || v >= h.since {
		return nil
	}
	return unscored(path, "vLLM %v may or may not do this, and %v does: %s", vllmversion.Version(v), vllmversion.Version(h.since), h.does)
}
