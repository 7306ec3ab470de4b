package kvindex

import (
	"errors"

	"github.com/kvindex/kvindex/events"
	"github.com/kvindex/kvindex/index"
	"github.com/kvindex/kvindex/internal/catalog"
	"github.com/kvindex/kvindex/internal/predict"
	"github.com/kvindex/kvindex/internal/prompt"
	"github.com/kvindex/kvindex/internal/registry"
	"github.com/kvindex/kvindex/tokenize/chat"
)

// The errors that a caller can test for with errors.Is.
var (
	// ErrNoTokenizer is wrapped by errors about a text for a model without a tokenizer.
	ErrNoTokenizer = errors.New("kvindex: no tokenizer")
	// ErrNoTemplate is wrapped by errors about a chat for a model without a chat
	// template.
	ErrNoTemplate = chat.ErrNoTemplate
	// ErrUnknownModel is wrapped by errors about a model that has no pods, while other
	// models have some. The likely cause: the request and SubscriberConfig.Model have
	// different names for one model. WithResolver maps a name to another.
	ErrUnknownModel = catalog.ErrUnknownModel
	// ErrUnknownAdapter is wrapped by errors about an adapter that is in no event of
	// the pods of its model. Either no block of the adapter was stored yet, or the
	// events have another name for it.
	ErrUnknownAdapter = catalog.ErrUnknownAdapter
	// ErrRequest is wrapped by errors about wrong requests, which the engine would refuse
	// too.
	ErrRequest = prompt.ErrRequest
	// ErrMalformed is wrapped by errors about payloads that cannot be read.
	ErrMalformed = events.ErrMalformed
	// ErrFull is wrapped by errors about messages of a rank that the index has no room
	// for, because other ranks take all of its memory that cannot be evicted (WithMemory).
	// The message counts as lost: do not bring it again. When pods have gone, the next
	// message of the rank is applied.
	ErrFull = index.ErrFull
	// ErrNotInRequest is wrapped by errors of Routed about a pod that is not in the answer,
	// because it was not in the request, and about a rank that no pod can have.
	ErrNotInRequest = predict.ErrNotInRequest
	// ErrAnswerUsed is wrapped by errors of Routed about an answer that was routed before,
	// or that a later ScoreRequest has overwritten.
	ErrAnswerUsed = errors.New("kvindex: the answer was already used")
	// ErrBlockSize is wrapped by errors of Routed about a pod whose block size is not known: the
	// pod has stored nothing yet, and the other pods of its model with the same Profile.Media
	// have stored nothing either, or have different block sizes. Then nothing can be predicted.
	ErrBlockSize = predict.ErrBlockSize
	// ErrClosed is returned after Close by every method that returns an error. Pods is empty
	// then, and Stats keeps its counters.
	ErrClosed = registry.ErrClosed
)
