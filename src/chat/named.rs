//! Templates by name, for models whose file has none or a wrong one.

use super::ChatError;

/// Name and source of each, by name.
const TEMPLATES: [(&str, &str); 14] = [
    ("chatml", include_str!("templates/chatml.jinja")),
    ("command-r", include_str!("templates/command-r.jinja")),
    ("deepseek", include_str!("templates/deepseek.jinja")),
    ("deepseek2", include_str!("templates/deepseek2.jinja")),
    ("exaone", include_str!("templates/exaone.jinja")),
    ("gemma", include_str!("templates/gemma.jinja")),
    ("glm4", include_str!("templates/glm4.jinja")),
    ("granite", include_str!("templates/granite.jinja")),
    ("llama2", include_str!("templates/llama2.jinja")),
    ("llama3", include_str!("templates/llama3.jinja")),
    ("mistral", include_str!("templates/mistral.jinja")),
    ("phi3", include_str!("templates/phi3.jinja")),
    ("vicuna", include_str!("templates/vicuna.jinja")),
    ("zephyr", include_str!("templates/zephyr.jinja")),
];

/// The source of the template of that name.
///
/// # Errors
/// [`ChatError::UnknownName`], with the names there are.
pub fn named_template(name: &str) -> Result<&'static str, ChatError> {
    let found = TEMPLATES.iter().find(|(known, _)| *known == name);
    found.map(|(_, source)| *source).ok_or_else(|| ChatError::UnknownName {
        name: name.to_owned(),
        known: template_names().collect::<Vec<_>>().join(", "),
    })
}

/// The names of all templates that hob has.
pub fn template_names() -> impl Iterator<Item = &'static str> {
    TEMPLATES.iter().map(|(name, _)| *name)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::{ChatMessage, ChatTemplate};
    use super::*;

    fn rendered(name: &str) -> String {
        let template = ChatTemplate::new(named_template(name).unwrap(), "<s>", "</s>").unwrap();
        let said =
            [("system", "Be brief."), ("user", "Hi"), ("assistant", "Yes?"), ("user", "Bye")];
        let messages = said.map(|(role, content)| ChatMessage::new(role, content));
        template.render(&messages, true).unwrap()
    }

    #[test]
    fn each_template_writes_what_its_models_were_trained_on() {
        for (name, wanted) in [
            (
                "chatml",
                "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n\
                 <|im_start|>assistant\nYes?<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n\
                 <|im_start|>assistant\n",
            ),
            (
                "llama2",
                "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHi [/INST] Yes? </s><s>[INST] Bye [/INST]",
            ),
            (
                "llama3",
                "<s><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>\
                 <|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>\
                 <|start_header_id|>assistant<|end_header_id|>\n\nYes?<|eot_id|>\
                 <|start_header_id|>user<|end_header_id|>\n\nBye<|eot_id|>\
                 <|start_header_id|>assistant<|end_header_id|>\n\n",
            ),
            (
                "gemma",
                "<s><start_of_turn>user\nBe brief.\n\nHi<end_of_turn>\n<start_of_turn>model\n\
                 Yes?<end_of_turn>\n<start_of_turn>user\nBye<end_of_turn>\n<start_of_turn>model\n",
            ),
            ("mistral", "<s>[INST] Be brief.\n\nHi[/INST] Yes?</s>[INST] Bye[/INST]"),
            (
                "phi3",
                "<|system|>\nBe brief.<|end|>\n<|user|>\nHi<|end|>\n<|assistant|>\nYes?<|end|>\n\
                 <|user|>\nBye<|end|>\n<|assistant|>\n",
            ),
            (
                "zephyr",
                "<|system|>\nBe brief.</s>\n<|user|>\nHi</s>\n<|assistant|>\nYes?</s>\n\
                 <|user|>\nBye</s>\n<|assistant|>\n",
            ),
            (
                "command-r",
                "<s><|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>Be brief.<|END_OF_TURN_TOKEN|>\
                 <|START_OF_TURN_TOKEN|><|USER_TOKEN|>Hi<|END_OF_TURN_TOKEN|>\
                 <|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>Yes?<|END_OF_TURN_TOKEN|>\
                 <|START_OF_TURN_TOKEN|><|USER_TOKEN|>Bye<|END_OF_TURN_TOKEN|>\
                 <|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
            ),
            (
                "deepseek",
                "<s>Be brief.<｜User｜>Hi<｜Assistant｜>Yes?<｜end▁of▁sentence｜><｜User｜>Bye<｜Assistant｜>",
            ),
            ("deepseek2", "<s>Be brief.\n\nUser: Hi\n\nAssistant: Yes?</s>User: Bye\n\nAssistant:"),
            ("vicuna", "<s>Be brief.\n\nUSER: Hi\nASSISTANT: Yes?</s>\nUSER: Bye\nASSISTANT:"),
            (
                "granite",
                "<|start_of_role|>system<|end_of_role|>Be brief.<|end_of_text|>\n\
                 <|start_of_role|>user<|end_of_role|>Hi<|end_of_text|>\n\
                 <|start_of_role|>assistant<|end_of_role|>Yes?<|end_of_text|>\n\
                 <|start_of_role|>user<|end_of_role|>Bye<|end_of_text|>\n\
                 <|start_of_role|>assistant<|end_of_role|>",
            ),
            (
                "glm4",
                "[gMASK]<sop><|system|>\nBe brief.<|user|>\nHi<|assistant|>\nYes?<|user|>\nBye\
                 <|assistant|>\n",
            ),
            (
                "exaone",
                "[|system|]Be brief.[|endofturn|]\n[|user|]Hi\n[|assistant|]Yes?[|endofturn|]\n\
                 [|user|]Bye\n[|assistant|]",
            ),
        ] {
            assert_eq!(rendered(name), wanted, "{name}");
        }
    }

    #[test]
    fn an_unknown_name_is_refused_with_the_known_ones() {
        let message = named_template("lama3").unwrap_err().to_string();
        assert!(message.contains("\"lama3\"") && message.contains("llama3, mistral"), "{message}");
    }
}
