package kvindex

import (
	"fmt"

	"github.com/kvindex/kvindex/index"
)

// Profile is what events cannot tell about a pod's engine. The zero Profile suits
// vLLM since March 2026, and claims no more of another engine than that one's own
// does.
type Profile struct {
	// Media says how the engine's blocks tell of media.
	Media MediaForm

	// Copies says how gpu blocks are counted; 0: CopiesExact with MediaPad, else
	// CopiesGuarded. That is safe against clients that make an engine announce
	// again what it holds (vLLM's kv_cache_report_mode, a field of its requests).
	// CopiesExact misses nothing either, and is right if they cannot.
	Copies Copies
}

// MediaForm is how the media of a prompt show in an engine's blocks.
type MediaForm = index.MediaForm

// The forms of media. Prompts without media match the same in all of them.
const (
	// MediaOffsets: each block has the identifier of an item and where it
	// starts. So vLLM since March 2026. A request needs Media.Hash and Offset.
	MediaOffsets = index.MediaOffsets
	// MediaBare: each block has the identifiers of its items. So vLLM before,
	// from February 2026 on, when its events began to tell them. A request needs
	// Media.Length too. Such a vLLM itself does not tell a salt from a medium of
	// that name, nor where in a block an item starts.
	MediaBare = index.MediaBare
	// MediaPad: the tokens of an item are 1,000,000 + its hash mod 2^30. So
	// SGLang. A request's Media.Hash is SGLang's hash of the item, in decimal, and
	// Media.Length its tokens, which are overwritten, so any placeholder will do.
	// A request with tokens that are overwritten already names no media.
	//
	// SGLang's events do not tell everything. They have no adapter and no
	// extra_key, which part its cache: a prompt without an adapter is claimed
	// where it is held under any of them, and one with an adapter nowhere. They
	// leave out window and Mamba layers: of models that have some, CachedTokens
	// is an upper bound. They come late, after a batch of prefills or 40 steps of
	// decoding: what is not published yet is not claimed. Before November 2025
	// they named a page by its tokens alone: much of what is held then is not
	// found, and some is at another place.
	MediaPad = index.MediaPad
)

func (p Profile) validate() error {
	switch {
	case p.Copies > CopiesSet:
		return fmt.Errorf("unknown copies mode %d", p.Copies)
	case p.Media >= index.NumMediaForms:
		return fmt.Errorf("unknown media form %d", p.Media)
	}
	return nil
}

// complete fills in what depends on the rest.
func (p Profile) complete() Profile {
	switch {
	case p.Copies != 0:
	case p.Media == MediaPad:
		// SGLang keeps a block once, but names those of several extra_keys
		// alike, and stores and removes each.
		p.Copies = CopiesExact
	default:
		p.Copies = CopiesGuarded
	}
	return p
}
