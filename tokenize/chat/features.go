// Features are noted while a request is read, from the fields that came and not from the
// engine's reading of them, so a request keeps no field that is not looked at.

package chat

import (
	"fmt"
	"iter"
	"maps"
	"strings"

	"github.com/kvindex/kvindex/internal/jinja"
)

// Features is a set of things that a chat can use, and that versions and settings of
// engines treat in different ways. The zero value is the empty set. Sets are joined by
// |. As text it has the names in the order of the constants, with commas between.
type Features uint32

// The features. A chat that has a feature also has those that its line names after
// "implies".
const (
	FeaturePlain              Features = 1 << iota // every chat has it. If an engine differs here, no chat of it is scorable
	FeatureNoGenerationPrompt                      // add_generation_prompt is false
	FeatureContinueFinal                           // continue_final_message; implies NoGenerationPrompt
	FeatureSystem                                  // a system message
	FeatureBillingHeader                           // a system message with Claude Code's "x-anthropic-billing-header"; implies System
	FeatureDeveloper                               // a developer message
	FeatureTurns                                   // a message of the assistant, or of a tool
	FeatureReasoning                               // reasoning of the assistant; implies Turns
	FeatureToolCalls                               // a tool call, or a message of a tool; implies Turns
	FeatureArguments                               // arguments of a tool call that are no JSON object; implies ToolCalls
	FeatureEmptyCalls                              // an empty list of tool calls; implies Turns
	FeatureTools                                   // tools
	FeatureToolFields                              // fields of a tool beside name, description and parameters; implies Tools
	FeatureParts                                   // content in parts
	FeaturePartFields                              // fields of a part beside its type and its text; implies Parts
	FeatureEmptyParts                              // a part without text, or with an empty one; implies Parts
	FeatureStringParts                             // a string among parts; implies Parts
	FeatureNames                                   // a message with a name
	FeatureDocuments                               // documents
	FeatureKwargs                                  // reasoning_effort, or chat_template_kwargs other than tools and documents

	allFeatures = 1<<iota - 1
)

var featureNames = []string{
	"plain", "no_generation_prompt", "continue_final", "system", "billing_header", "developer", "turns", "reasoning", "tool_calls",
	"arguments", "empty_calls", "tools", "tool_fields", "parts", "part_fields", "empty_parts", "string_parts", "names", "documents", "kwargs",
}

// String returns the names of f, "none" if it is empty.
func (f Features) String() string {
	var names []string
	for i, name := range featureNames {
		if f&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	if f &^= allFeatures; f != 0 {
		names = append(names, fmt.Sprintf("%#x", uint32(f)))
	}
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ",")
}

// MarshalText returns the String of f.
func (f Features) MarshalText() ([]byte, error) { return []byte(f.String()), nil }

// UnmarshalText reads what MarshalText has written.
func (f *Features) UnmarshalText(text []byte) error {
	var set Features
	if s := string(text); s != "none" {
	names:
		for name := range strings.SplitSeq(s, ",") {
			for i, known := range featureNames {
				if name == known {
					set |= 1 << i
					continue names
				}
			}
			return fmt.Errorf("chat: %.60q is no feature", name)
		}
	}
	*f = set
	return nil
}

// Features returns the features that a chat uses. A completion has none.
func (r *Request) Features() Features {
	if r.chat == nil {
		return 0
	}
	return r.chat.features
}

// findFeatures tells what the chat uses, when all of it is read.
func (c *conversation) findFeatures() {
	f := FeaturePlain
	if !c.addGenerationPrompt {
		f |= FeatureNoGenerationPrompt
	}
	if c.continueFinal {
		f |= FeatureContinueFinal
	}
	if c.documents != nil {
		f |= FeatureDocuments
	}
	if c.effort != nil {
		f |= FeatureKwargs
	}
	for i := 0; c.kwargs != nil && i < c.kwargs.Len(); i++ {
		switch name, v := c.kwargs.At(i); name {
		case "documents":
			f |= FeatureDocuments
		case "tools": // as they are, with any fields
			if l, ok := v.(*jinja.List); ok && len(l.Items) > 0 {
				f |= FeatureTools | FeatureToolFields
			}
		default:
			f |= FeatureKwargs
		}
	}
	for _, t := range c.tools {
		f |= FeatureTools
		if t.more != nil || t.moreOfTool != nil {
			f |= FeatureToolFields
		}
	}
	for i := range c.messages {
		f |= c.messages[i].features
	}
	c.features = f
}

// featuresOfRole are what a message has by its role.
func featuresOfRole(role string) Features {
	switch role {
	case "system":
		return FeatureSystem
	case "developer":
		return FeatureDeveloper
	case "assistant":
		return FeatureTurns
	case "tool":
		return FeatureTurns | FeatureToolCalls
	}
	return 0
}

// featuresOfPart are what a part has that is read.
func (p *part) featuresOfPart(o *jinja.Dict) (f Features) {
	known := 2 // the type, and what has the text or the media
	if p.kind == partSkipped {
		if _, ok := o.Lookup(textParts[p.rare.kind].field); !ok {
			known = 1
		}
	}
	if o.Len() > known {
		f |= FeaturePartFields
	}
	if p.kind != partMedia && p.text == "" {
		f |= FeatureEmptyParts
	}
	return f
}

// featuresOfSystem looks for the billing header in the texts of a system message:
// anywhere, so that it is found wherever an engine looks.
func featuresOfSystem(content []part) Features {
	for i := range content {
		if strings.Contains(content[i].text, billingHeader) {
			return FeatureBillingHeader
		}
	}
	return 0
}

// exclusions are what Exclude was told. They are immutable.
type exclusions struct {
	all  Features
	pods map[string]Features // none of them is empty
}

// maxExcluded bounds the pods of exclusions.
const maxExcluded = 4096

// Exclude makes chats that use one of the features f not scorable: for one pod, or for
// all pods if pod is "". Use it for what chatcheck has found to differ. Each call
// replaces what was excluded for the same pod, or for all pods. Call it with f = 0 to
// exclude nothing.
//
// For features that are excluded for all pods, Render returns an error that wraps
// ErrNotScorable and names them. For features that are excluded for one pod, an Indexer
// sets PodScore.NotScorable for this pod, and scores the others.
//
// At most 4,096 pods can have features excluded. Those of a further pod are excluded
// for all pods in addition. So call Exclude with f = 0 for a pod that has gone.
//
// Exclude is safe to call while chats are rendered. It has effect on chats that are
// rendered later.
func (m *Model) Exclude(pod string, f Features) {
	f &= allFeatures
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
				e.pods = make(map[string]Features)
			}
			e.pods[pod] = f
		}
		if e.all == 0 && len(e.pods) == 0 {
			e = nil
		}
		if m.excluded.CompareAndSwap(old, e) {
			return
		}
	}
}

// exclude notes for which pods a chat is not scorable. If it is not for all, that is
// the error.
func (x *Rendering) exclude(r *Request) error {
	e := x.model.excluded.Load()
	if e == nil {
		return nil
	}
	x.features, x.excluded = r.Features(), e.pods
	if f := x.features & e.all; f != 0 {
		return notScorable("the chat uses what Model.Exclude has excluded for all pods: %s", f)
	}
	return nil
}

// Excluded returns each pod for which this chat is not scorable because of
// Model.Exclude, with the features that are excluded there and that the chat has. What
// was excluded when the chat was rendered counts.
func (x *Rendering) Excluded() iter.Seq2[string, Features] {
	return func(yield func(string, Features) bool) {
		for pod, f := range x.excluded {
			if f &= x.features; f != 0 && !yield(pod, f) {
				return
			}
		}
	}
}
