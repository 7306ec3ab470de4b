package remote

// JudgeTexts are the texts of a Judge.
func JudgeTexts() (texts []string) {
	for _, c := range judgeTexts {
		texts = append(texts, c.text)
	}
	return texts
}

// JudgeRequests is the number of requests of a whole check.
var JudgeRequests = 2*len(judgeTexts) + len(judgeChats)
