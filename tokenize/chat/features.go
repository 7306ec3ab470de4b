// A request's features are recorded while it is parsed, from the fields that came and not from
// the engine's reading of them, so a request keeps no unused field.

package chat

import (
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/kvindex/kvindex/internal/jinja/python"
)

// A featureSet is a set of features, as Model.Exclude lists them. The zero value is the empty
// set.
type featureSet uint32

// In the order of allFeatures.
const (
	featurePlain featureSet = 1 << iota
	featureNoGenerationPrompt
	featureContinueFinal
	featureSystem
	featureBillingHeader
	featureDeveloper
	featureTurns
	featureReasoning
	featureToolCalls
	featureArguments
	featureEmptyCalls
	featureTools
	featureToolFields
	featureParts
	featurePartFields
	featureEmptyParts
	featureStringParts
	featureNames
	featureDocuments
	featureKwargs
	featureMessages
	featureResponses
)

var allFeatures = []string{
	"plain", "no_generation_prompt", "continue_final", "system", "billing_header", "developer", "turns", "reasoning", "tool_calls",
	"arguments", "empty_calls", "tools", "tool_fields", "parts", "part_fields", "empty_parts", "string_parts", "names", "documents", "kwargs",
	"messages", "responses",
}

// String returns the names of f with commas between. For one name it allocates nothing.
func (f featureSet) String() string {
	var room [32]string
	names := room[:0]
	for i, name := range allFeatures {
		if f&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, ",")
}

// featuresOf returns the set of these names.
func featuresOf(names []string) (f featureSet, err error) {
	for _, name := range names {
		i := slices.Index(allFeatures, name)
		if i < 0 {
			return 0, fmt.Errorf("chat: %.60q is no feature: they are %s", name, strings.Join(allFeatures, ", "))
		}
		f |= 1 << i
	}
	return f, nil
}

// findFeatures finds the features of a parsed chat.
func (c *conversation) findFeatures() {
	f := featurePlain
	if !c.addGenerationPrompt {
		f |= featureNoGenerationPrompt
	}
	if c.continueFinal {
		f |= featureContinueFinal
	}
	if c.documents != nil {
		f |= featureDocuments
	}
	if c.effort != nil {
		f |= featureKwargs
	}
	for i := 0; c.kwargs != nil && i < c.kwargs.Len(); i++ {
		switch name, v := c.kwargs.At(i); name {
		case "documents":
			f |= featureDocuments
		case "tools": // as they are, with any fields
			if l, ok := v.(*python.List); ok && len(l.Items) > 0 {
				f |= featureTools | featureToolFields
			}
		default:
			f |= featureKwargs
		}
	}
	for _, t := range c.tools {
		f |= featureTools
		if t.more != nil || t.moreOfTool != nil {
			f |= featureToolFields
		}
	}
	for i := range c.messages {
		f |= c.messages[i].features
	}
	c.features = f
}

// featuresOfRole returns the features of a message by its role.
func featuresOfRole(role string) featureSet {
	switch role {
	case "system":
		return featureSystem
	case "developer":
		return featureDeveloper
	case "assistant":
		return featureTurns
	case "tool":
		return featureTurns | featureToolCalls
	}
	return 0
}

// featuresOfPart returns the features of a part that is read.
func (p *part) featuresOfPart(o *python.Dict) (f featureSet) {
	known := 2 // the type, and what has the text or the media
	if p.kind == partSkipped {
		if _, ok := o.Lookup(textParts[p.rare.kind].field); !ok {
			known = 1
		}
	}
	if o.Len() > known {
		f |= featurePartFields
	}
	if p.kind != partMedia && p.text == "" {
		f |= featureEmptyParts
	}
	return f
}

// featuresOfSystem looks for the billing header in the texts of a system message:
// anywhere, so that it is found wherever an engine looks.
func featuresOfSystem(content []part) featureSet {
	for i := range content {
		if strings.Contains(content[i].text, billingHeader) {
			return featureBillingHeader
		}
	}
	return 0
}

// exclusions are the features that Exclude has set. They are immutable.
type exclusions struct {
	all  featureSet
	pods map[string]featureSet // none of them is empty
}

// maxExcluded bounds the pods of exclusions.
const maxExcluded = 4096

// Exclude makes chats that use one of these features not scorable: for one pod, or for all
// pods if pod is "". Use it for differences that chatcheck has found. Each call replaces the
// exclusions of the same pod, or those of all pods. Call it without features to exclude
// nothing. An unknown feature is an error, and changes nothing.
//
// Features are things that a chat can use, and that versions and settings of engines treat in
// different ways. A chat that has a feature also has the features behind its "implies":
//
//	plain                 every chat has it. If an engine differs here, no chat of it is scorable
//	no_generation_prompt  add_generation_prompt is false
//	continue_final        continue_final_message; implies no_generation_prompt
//	system                a system message
//	billing_header        a system message with Claude Code's "x-anthropic-billing-header"; implies system
//	developer             a developer message
//	turns                 a message of the assistant, or of a tool
//	reasoning             reasoning of the assistant; implies turns
//	tool_calls            a tool call, or a message of a tool; implies turns
//	arguments             arguments of a tool call that are no JSON object; implies tool_calls
//	empty_calls           an empty list of tool calls; implies turns
//	tools                 tools
//	tool_fields           fields of a tool beside name, description and parameters; implies tools
//	parts                 content in parts
//	part_fields           fields of a part beside its type and its text; implies parts
//	empty_parts           a part without text, or with an empty one; implies parts
//	string_parts          a string among parts; implies parts
//	names                 a message with a name
//	documents             documents
//	kwargs                reasoning_effort, or chat_template_kwargs other than tools and documents
//	messages              a body of Anthropic's Messages API
//	responses             a body of OpenAI's Responses API
//
// For features that are excluded for all pods, Render returns an error that wraps
// ErrNotScorable and names them. For features that are excluded for one pod, an Indexer sets
// PodScore.NotScorable for this pod, and scores the others.
//
// At most 4,096 pods can have exclusions. Those of a further pod are excluded for all pods. So
// call Exclude without features for a removed pod.
//
// Exclude is safe to call while chats are rendered. It affects chats that are rendered later.
func (m *Model) Exclude(pod string, features ...string) error {
	f, err := featuresOf(features)
	if err != nil {
		return err
	}
	for {
		old := m.excluded.Load()
		e := new(exclusions)
		if old != nil {
			e.all, e.pods = old.all, maps.Clone(old.pods)
		}
		_, kept := e.pods[pod]
		switch {
		case pod == "":
			e.all = f
		case f == 0:
			delete(e.pods, pod)
		case !kept && len(e.pods) >= maxExcluded:
			e.all |= f
		default:
			if e.pods == nil {
				e.pods = make(map[string]featureSet)
			}
			e.pods[pod] = f
		}
		if e.all == 0 && len(e.pods) == 0 {
			e = nil
		}
		if m.excluded.CompareAndSwap(old, e) {
			return nil
		}
	}
}

// exclude records the pods for which a chat is not scorable. It returns an error if that is
// all pods.
func (x *Rendering) exclude() error {
	e := x.model.excluded.Load()
	if e == nil {
		return nil
	}
	x.features, x.excluded = x.chat.features, e.pods
	if f := x.features & e.all; f != 0 {
		return notScorable("the chat uses what Model.Exclude has excluded for all pods: %s", f)
	}
	return nil
}

// Excluded returns each pod for which this chat is not scorable because of Model.Exclude, as
// of the time when the chat was rendered.
func (x *Rendering) Excluded() iter.Seq[string] {
	return func(yield func(pod string) bool) {
		for pod, f := range x.excluded {
			if f&x.features != 0 && !yield(pod) {
				return
			}
		}
	}
}

// ExcludedFor returns the features that are excluded for a pod and that the chat has, with
// commas between; "" if there are none.
func (x *Rendering) ExcludedFor(pod string) string {
	return (x.excluded[pod] & x.features).String()
}
