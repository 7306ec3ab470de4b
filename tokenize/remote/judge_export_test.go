package remote

func JudgeTexts() (texts []string) {
	for _, c := range judgeTexts {
		texts = append(texts, c.text)
	}
	return texts
}

// JudgeRequests is the number of requests of a complete check.
var JudgeRequests = 2*len(judgeTexts) + len(judgeChats)
