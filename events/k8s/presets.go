package k8s

// The labels of AIBrix v0.7.0, as pkg/constants/model.go and pkg/constants/kv_event_sync.go
// name them.
const (
	aibrixModel   = "model.aibrix.ai/name"
	aibrixSwitch  = "model.aibrix.ai/kv-events-enabled"
	aibrixAdapter = "model.aibrix.ai/lora-id"
	aibrixHTTP    = "model.aibrix.ai/port"
	aibrixEngine  = "model.aibrix.ai/engine"
)

// AIBrix returns the Config for pods that are labelled for AIBrix v0.7.0. namespace "" is
// all namespaces.
//
// A pod is taken if model.aibrix.ai/kv-events-enabled is "true" and model.aibrix.ai/name is
// a label or an annotation of it (pkg/kvevent/manager.go, isPodSubscribable). The ports are
// 5557 and 5558 for all pods (pkg/cache/kvcache/types.go): model.aibrix.ai/port is where the
// engine answers HTTP, and no port of events. That label, model.aibrix.ai/engine and
// model.aibrix.ai/lora-id are in events.Pod.Labels, for the host: which adapter a block
// belongs to is said by the events. AIBrix takes pods that are not Ready, this Config does
// not: set Unready for that. AIBrix has no label for ranks and follows rank 0 alone: name one
// in Ranks.
func AIBrix(namespace string) Config {
	return Config{
		Namespace:     namespace,
		LabelSelector: aibrixSwitch, // with any value, so that one that cannot be read is told
		Switch:        aibrixSwitch,
		Model:         From[string]{Key: aibrixModel},
		Port:          From[int]{Default: 5557},
		ReplayPort:    From[int]{Default: 5558},
		Labels:        []string{aibrixAdapter, aibrixHTTP, aibrixEngine},
	}
}

// LLMD returns the Config for pods that are labelled for llm-d, as the pod discovery of
// llm-d-kv-cache v0.8.1 finds them: llm-d.ai/inference-serving is "true", the port is 5557,
// and there is no replay socket (pkg/kvevents/pool.go, DefaultPodReconcilerConfig). namespace
// "" is all namespaces.
//
// llm-d reads the model from the topic of each message (kv@pod@model). Here it is model for
// all pods: have a source for each model, each with a LabelSelector of its own, or name a
// label in Model. The label llm-d.ai/model is a short name and need not be the one in
// requests. All topics are taken; llm-d takes those that begin with "kv@".
//
// Charts of before set llm-d.ai/inferenceServing: for them change the LabelSelector.
func LLMD(namespace, model string) Config {
	return Config{
		Namespace:     namespace,
		LabelSelector: "llm-d.ai/inference-serving=true",
		Model:         From[string]{Default: model},
		Port:          From[int]{Default: 5557},
		Labels:        []string{"llm-d.ai/model", "llm-d.ai/role"},
	}
}
