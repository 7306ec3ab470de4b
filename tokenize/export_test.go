package tokenize

// What tests compare code point by code point.
func IsLetter(r rune) bool { return classOf(r)&letter != 0 }
func IsNumber(r rune) bool { return classOf(r)&number != 0 }
func IsSpace(r rune) bool  { return classOf(r)&space != 0 }
func IsWord(r rune) bool   { return classOf(r)&word != 0 }

const (
	MaxFile   = maxFile
	MaxToken  = maxToken
	MaxAdded  = maxAdded
	MaxVocab  = maxVocab
	LongPiece = longPiece
)
