package kvindex

import (
	"context"
	"errors"
	"fmt"

	"github.com/kvindex/kvindex/tokenize/chat"
)

// read returns r with what its Body says where r says nothing, and the chat that it
// asks for, if it does. Without a Body it is r.
func (r *Request) read() (read *Request, asked *chat.Request, err error) {
	if r.Body == nil {
		return r, nil, nil
	}
	if r.Prompt != "" || len(r.Tokens) > 0 || r.Rendered {
		return r, nil, fmt.Errorf("%w: it has a body, and a prompt or tokens or Rendered", ErrRequest)
	}
	body, err := chat.Parse(r.Body)
	if err != nil {
		return r, nil, ofBody(err)
	}
	filled := *r
	if r.Model == "" && r.Candidates == nil {
		filled.Model = body.Model
	}
	if r.Salt == "" {
		filled.Salt = body.Salt
	}
	if body.Chat() {
		return &filled, body, nil
	}
	filled.Prompt, filled.Tokens, filled.Rendered = body.Prompt, body.Tokens, !body.AddSpecial
	return &filled, nil, nil
}

// ofBody tells requests that no engine takes from those that cannot be scored.
func ofBody(err error) error {
	if errors.Is(err, chat.ErrMalformed) || errors.Is(err, chat.ErrTemplate) {
		return fmt.Errorf("%w: the body: %w", ErrRequest, err)
	}
	return fmt.Errorf("kvindex: the body: %w", err)
}

// renderChat sets the prompt of sc to the tokens of a chat, and its media to those
// given, each in its place.
func (x *Indexer) renderChat(ctx context.Context, sc *scorer, media []Media, asked *chat.Request, base string) error {
	var model *chat.Model
	if x.chats != nil {
		var err error
		if model, err = x.chats(ctx, base); err != nil {
			return fmt.Errorf("kvindex: the chat template of model %q: %w", base, err)
		}
	}
	if model == nil {
		return fmt.Errorf("%w for model %q: give one by WithChats, or score the rendered text by Request.Prompt and Rendered", ErrNoTemplate, base)
	}
	text, err := model.Render(asked, media)
	if err != nil {
		return ofBody(err)
	}
	if sc.prompt, err = x.tokenize(ctx, sc, text.Text, !asked.AddSpecial, base); err != nil || len(media) == 0 {
		return err
	}
	sc.expanded, sc.media, err = text.Expand(sc.expanded[:0], sc.prompt)
	sc.prompt = sc.expanded
	if err != nil {
		return ofBody(err)
	}
	return nil
}
