package tokenize

// What tests compare piece by piece and code point by code point.
var (
	ScanGPT2   = scanGPT2
	ScanLlama3 = scanLlama3
)

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
